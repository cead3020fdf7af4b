"""Bounds on what stays in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.memory import bound_memory
from tests.serving.support import ROOT

#: Resident MiB after convolutions of 1100 sizes, over that after the first 300.
GROWTH = """
from pathlib import Path
from serving.memory import bound_memory, give_back_free_memory
bound_memory()
import torch
torch.set_num_threads(1)
weights, start = torch.randn(16, 3, 3, 3), 0
def resident():
    give_back_free_memory()
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
with torch.inference_mode():
    for number in range(1100):
        if number == 300:
            start = resident()
        picture = torch.zeros(2, 3, 20 + number % 40, 20 + number // 40)
        torch.nn.functional.conv2d(picture.contiguous(memory_format=torch.channels_last), weights)
print(resident() - start)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_plans_for_sizes_of_the_past_are_dropped():
    environment = {k: v for k, v in os.environ.items() if "CACHE_CAPACITY" not in k and not k.startswith("MALLOC_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    growth = float(subprocess.check_output([sys.executable, "-c", GROWTH], env=environment, text=True))
    assert growth < 15  # 3 as it is, 45 without the bound


def test_what_the_environment_says_goes_first(monkeypatch):
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    bound_memory()
    assert os.environ["LRU_CACHE_CAPACITY"] == os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
