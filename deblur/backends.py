"""What can run the generator. Free of torch."""

from __future__ import annotations

from deblur.errors import OptionError

BACKENDS = {
    "auto": "onnx for a file that `deblur export` wrote, else torch",
    "torch": "PyTorch as it is",
    "compile": "PyTorch through torch.compile: a minute for each new size; needs a C++ compiler on a CPU",
    "graphs": "PyTorch with one CUDA graph a size",
    "onnx": "ONNX Runtime on the CPU, in fp32; needs an exported file",
    "openvino": "OpenVINO on the CPU, in fp32 or bf16, a second for each new size; needs an exported file",
}
EXPORTED = ("onnx", "openvino")


def check_backend(backend: str, weights: str) -> None:
    """Whether a backend is known and can run these weights.

    Raises:
        OptionError: it is not, or cannot.
    """
    if backend not in BACKENDS:
        raise OptionError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend != "auto" and (backend in EXPORTED) != weights.endswith(".onnx"):
        needed = "FILE.onnx, written by `deblur export --onnx FILE.onnx`" if backend in EXPORTED else "a name or FILE"
        raise OptionError(f"backend {backend}: expected weights {needed}, got {weights}")
