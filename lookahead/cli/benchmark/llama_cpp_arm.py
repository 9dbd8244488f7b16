"""The arm of another engine, llama.cpp, on the same prompt ids, where its package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lookahead.cli.benchmark.arms import Arm, ArmSpec
from lookahead.cli.console import CommandError


class LlamaCppArm(Arm):
    """Greedy or sampled decoding by llama.cpp; its numbers are its own, so ids may differ.

    Parameters
    ----------
    spec, model, max_length
        As for the other arms; the model is asked for its end tokens only.
    model_name : str
        ``default`` or a ``.gguf`` file: llama.cpp reads nothing else.
    """

    takes_cache = False
    takes_batches = False
    is_metered = False
    can_be_taken_apart = False

    def __init__(self, spec: ArmSpec, model: Any, max_length: int, model_name: str) -> None:
        super().__init__(spec, model, max_length)
        try:
            from llama_cpp import Llama  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise CommandError(
                "The arm llama_cpp needs the package llama-cpp-python, which is not installed: run "
                "pip install llama-cpp-python, or leave the arm out."
            ) from None
        import torch

        self._llama = Llama(
            model_path=str(_gguf_of(model_name)),
            n_ctx=max_length,
            n_threads=torch.get_num_threads(),
            verbose=False,
        )

    def decode(self, prompt_ids: list[int], stream: Any, options: dict[str, Any]) -> list[int]:
        """Write an answer and give its ids."""
        import torch

        ends = self.model.generation_config.eos_token_id
        end_ids = set(ends if isinstance(ends, list) else [ends])
        is_sampled = options["do_sample"]
        stream.put(torch.tensor(prompt_ids))
        new_ids: list[int] = []
        tokens = self._llama.generate(
            prompt_ids,
            temp=options["temperature"] if is_sampled else 0.0,
            top_p=options["top_p"],
            top_k=options["top_k"],
            repeat_penalty=1.0,
            reset=True,
        )
        for token in tokens:
            new_ids.append(int(token))
            stream.put(torch.tensor([token]))
            if token in end_ids or len(new_ids) >= options["max_new_tokens"]:
                break
        stream.end()
        return new_ids


def _gguf_of(model_name: str) -> Path:
    from lookahead.hf.default_model import DEFAULT_MODEL, find_gguf

    if model_name == DEFAULT_MODEL:
        return find_gguf()
    path = Path(model_name)
    if path.suffix != ".gguf" or not path.is_file():
        raise CommandError(
            f"The arm llama_cpp reads .gguf files only, and the model is {model_name}; use --model "
            "default or a .gguf file, or leave the arm out."
        )
    return path
