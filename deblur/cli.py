"""The command `deblur`. A subcommand's code is imported only when that subcommand is used."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from deblur import __version__
from deblur.errors import DeblurError, OptionError

OK, USAGE, NOTHING_DONE, BUG, INTERRUPTED = 0, 2, 3, 70, 130
DEBUG = "DEBLUR_DEBUG"
# name -> (module with add_arguments(parser) and run(args) -> exit code, one line of help)
_COMMANDS = {
    "restore": ("deblur.batch.command", "restore pictures and folders"),
    "evaluate": ("deblur.evaluation", "measure blurred and restored pictures: faces found, fidelity, identity"),
    "export": ("deblur.export", "write the generator for use without PyTorch (ONNX)"),
    "info": ("deblur.cli", "show versions, device and weights"),
}
_EPILOG = f"""
deblur COMMAND --help tells more.

exit codes: 0 all fine; 1 some pictures failed; 2 wrong usage; 3 nothing could be done; 70 a bug in the program;
130 stopped by ctrl-C. {DEBUG}=1 shows where in the program an error came from.
"""
_PACKAGES = (
    "torch",
    "torchvision",
    "facenet-pytorch",
    "numpy",
    "pillow",
    "opencv-python-headless",
    "safetensors",
    "pillow-heif",
    "onnxruntime",
    "openvino",
    "ray",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: Without the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        args = _parser(words).parse_args(words)
        return int(importlib.import_module(_COMMANDS[args.command][0]).run(args))
    except KeyboardInterrupt:
        _say("stopped")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away; a second error while Python closes stdout would only be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return NOTHING_DONE
    except OptionError as error:
        return _failed(error, USAGE)
    except DeblurError as error:
        return _failed(error, NOTHING_DONE)
    except Exception as error:
        return _bug(error)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deblur",
        description="Restores motion-blurred faces in photographs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"deblur {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
        if name == asked:
            importlib.import_module(module).add_arguments(command)
    return parser


def _prepare_streams() -> None:
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")  # it writes to stderr about pictures that we report
    if not sys.warnoptions and not _debugging():
        warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # any file name can be printed
    logging.basicConfig(level=logging.DEBUG if _debugging() else logging.WARNING, format="%(name)s: %(message)s")
    if _debugging():
        for noisy in ("PIL", "matplotlib", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.INFO)


def _debugging() -> bool:
    return os.environ.get(DEBUG, "") not in ("", "0")


def _say(text: str) -> None:
    print(f"deblur: {text}", file=sys.stderr)


def _failed(error: Exception, code: int) -> int:
    if _debugging():
        logging.exception("%s", error)
    _say(f"error: {' '.join(str(error).split())}")
    return code


def _bug(error: Exception) -> int:
    if _debugging():
        logging.exception("unexpected")
    text = " ".join(str(error).split())[:500]
    _say(f"unexpected {type(error).__name__}: {text}")
    _say(f"this is a bug; please report it with the output of `deblur info` and of this command with {DEBUG}=1")
    return BUG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `deblur info`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--weights", default="default", metavar="NAME|FILE", help="bundled weights, or a file")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto (default), cpu, cuda, cuda:1, mps")


def run(args: argparse.Namespace) -> int:
    """Runs `deblur info`; returns 3 where the weights or the device cannot be used."""
    information = _information(args.weights, args.device)
    if args.json:
        print(json.dumps(information, indent=2))
    else:
        for line in _information_lines(information):
            print(line)
    return NOTHING_DONE if information["problems"] else OK


def _information(weights: str, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "deblur": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "problems": [],
    }
    for key, describe in (("device", lambda: _device(device)), ("weights", lambda: _weights(weights))):
        try:
            found[key] = describe()
        except DeblurError as error:
            found[key] = None
            found["problems"].append(" ".join(str(error).split()))
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device(name: str) -> dict[str, Any]:
    import torch

    from deblur.devices import resolve_device, resolve_precision

    device = resolve_device(name)
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or device.type
    precision = str(resolve_precision("auto", device)).removeprefix("torch.")
    return {"name": str(device), "label": label, "precision": precision, "threads": torch.get_num_threads()}


def _weights(name: str) -> dict[str, Any]:
    from deblur.weights import load_weights

    weights = load_weights(name)
    parameters = sum(parameter.numel() for parameter in weights.generator.parameters())
    return {
        "name": weights.name,
        "path": str(weights.path),
        "sha256": weights.sha256,
        "parameters": parameters,
        "metadata": weights.metadata,
    }


def _information_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"deblur {found['deblur']}, Python {found['python']}, {found['system']}, {found['cpus']} CPUs"]
    lines += [f"  {name} {version or 'not installed'}" for name, version in found["packages"].items()]
    if found["device"]:
        device = found["device"]
        lines.append(
            f"device: {device['name']} ({device['label']}), {device['precision']}, {device['threads']} threads"
        )
    if found["weights"]:
        weights = found["weights"]
        lines.append(f"weights: {weights['name']}, {weights['parameters'] / 1e6:.1f} M parameters")
        lines.append(f"  file: {weights['path']}")
        lines.append(f"  sha256: {weights['sha256']}")
        for key, value in sorted(weights["metadata"].items()):
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"  {key}: {text}")
    return lines + [f"problem: {problem}" for problem in found["problems"]]
