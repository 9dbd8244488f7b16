"""Everything that ``generate`` accepts, with a call for each that shows what becomes of it.

``python -m tests.options_table`` writes docs/options.md from this table. A test runs every call,
and fails where the installed library accepts something that has no row here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, cache_utils

from tests.helpers import CACHE, first_seen, fresh, new_ids, prompt, shared
from tests.vocabularies import letter_tokenizer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"
FAST, PLAIN, REFUSED = "fast", "plain", "refused"
AT_ONCE = "may look at several rows at once"
BEAMS = "beam"
HUB = "trust_remote_code=True"

#: Classes of the library that the calls name.
CLASSES = (
    "CompileConfig",
    "ContinuousBatchingConfig",
    "DynamicCache",
    "EosTokenCriteria",
    "GenerationConfig",
    "MinPLogitsWarper",
    "QuantizedCache",
    "StaticCache",
    "SynthIDTextWatermarkingConfig",
    "WatermarkingConfig",
)


@dataclass(frozen=True)
class Option:
    """One way to call ``generate``.

    Parameters
    ----------
    name : str
        The argument, or the field of ``GenerationConfig``.
    call : str
        Arguments as they are written in a call, in terms of :func:`names`.
    verdict : str
        ``FAST``, ``PLAIN`` or ``REFUSED``; the last by the library itself.
    says : str
        Part of the reason for running plain, or of the library's message.
    batch : str or None
        Part of the reason why a greedy batch runs plain; empty where it is fast, too; None where
        the call has one prompt only.
    note : str
        For the reader of the document.
    family : str
        Of the model that the call is made on.
    runs : bool
        False where the library cannot do it on every machine, or not in a second: then only the
        refusal of ``strict=True`` is tried.
    """

    name: str
    call: str
    verdict: str = FAST
    says: str = ""
    batch: str | None = ""
    note: str = ""
    family: str = "llama"
    runs: bool = True

    def arguments(self) -> dict[str, Any]:
        """Make the arguments anew: some have a state."""
        made: dict[str, Any] = eval(f"dict({self.call})", dict(names()))
        return {CACHE if name == "cache" else name: value for name, value in made.items()}

    @property
    def is_known(self) -> bool:
        """Whether the installed release has the option; the table is of the newest."""
        known = self.name in accepted() | MODEL_INPUTS
        known = known and ("fp8" not in self.call or hasattr(cache_utils, "Fp8QuantizedLayer"))
        return known and not any(f"{name}(" in self.call for name in CLASSES if not _class(name))

    def __str__(self) -> str:
        """Name the call in the list of tests."""
        return self.call.replace(" ", "")


@functools.cache
def names() -> dict[str, Any]:
    """Return what the calls of the table are written in; nothing in it has a state."""
    ids = prompt(18, repeat=4)
    new = new_ids(shared(), ids)
    return {
        **{name: _class(name) for name in CLASSES},
        "torch": torch,
        "ids": ids,
        "new": new,
        "end": new[first_seen(new)[4]],
        "embeddings": shared().get_input_embeddings()(ids).detach(),
        "tokenizer": letter_tokenizer(),
        "config": shared().config,
        "small_model": fresh,
        "streamer": _Streamer,
        "by_row": _ByRow,
        "other_loop": lambda model, input_ids, **_: input_ids,
    }


def _class(name: str) -> Any:
    return getattr(transformers, name, None)


class _Streamer:
    def put(self, value: Any) -> None: ...
    def end(self) -> None: ...


class _ByRow:
    """A processor that says what it is for one row: itself."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        return scores.roll(1, -1)

    def lookahead_row(self, row: int, batch: int) -> Any:
        return self


INPUTS = [
    Option("inputs", "inputs=ids", batch=None),
    Option("input_ids", "input_ids=ids", batch=None),
    Option("inputs_embeds", "inputs_embeds=embeddings", batch=None),
    Option("inputs_embeds", "inputs_embeds=embeddings, input_ids=ids", batch=None),
    Option("attention_mask", "inputs=ids, attention_mask=torch.ones_like(ids)", batch=None),
    Option(
        "attention_mask",
        "inputs=ids, attention_mask=(torch.arange(18) > 2).long()[None]",
        batch=None,
        note="padding on the left",
    ),
    Option("position_ids", "inputs=ids, position_ids=torch.arange(18)[None] + 3", batch=None),
    Option(
        "token_type_ids",
        "inputs=ids, token_type_ids=torch.ones_like(ids)",
        batch=None,
        family="gpt2",
        note="and other tensors of a model's own",
    ),
    Option("cache", "inputs=ids, cache=DynamicCache(config=config)", batch=None),
    Option("cache", "inputs=ids, cache=StaticCache(config, max_cache_len=60)", batch=None),
    Option(
        "cache",
        "inputs=ids, cache=QuantizedCache('fp8', config)",
        PLAIN,
        "quantised cache turns rounding into steps",
        batch=None,
    ),
    Option("past_key_values", "past_key_values=DynamicCache(config=config)"),
    Option("logits_to_keep", "logits_to_keep=3"),
    Option("tokenizer", "tokenizer=tokenizer"),
    Option("assistant_tokenizer", "assistant_tokenizer=tokenizer"),
    Option("trust_remote_code", "trust_remote_code=True"),
    Option("an unknown name", "max_tokens=4", REFUSED, "not used by the model"),
]

ARGUMENTS = [
    Option("generation_config", "generation_config=GenerationConfig(max_new_tokens=8)", batch=None),
    Option("logits_processor", "logits_processor=[MinPLogitsWarper(0.1)]"),
    Option(
        "logits_processor",
        "logits_processor=[lambda ids, scores: scores.roll(1, -1)]",
        batch=AT_ONCE,
        note="called once for each token, in order, on the text as it is",
    ),
    Option(
        "logits_processor",
        "logits_processor=[by_row()]",
        note="it has a method [lookahead_row](plain.md)",
    ),
    Option("stopping_criteria", "stopping_criteria=[EosTokenCriteria(end)]"),
    Option(
        "stopping_criteria",
        "stopping_criteria=[lambda ids, scores: torch.full((len(ids),), ids.shape[1] > 22)]",
        batch=AT_ONCE,
    ),
    Option(
        "prefix_allowed_tokens_fn",
        "prefix_allowed_tokens_fn=lambda row, ids: [3 + int(ids[-1]) % 5, 50, 60]",
    ),
    Option("streamer", "streamer=streamer()", note="one token of every row at a time"),
    Option("synced_gpus", "synced_gpus=False"),
    Option("synced_gpus", "synced_gpus=True", REFUSED, "process group"),
    Option(
        "assistant_model",
        "assistant_model=small_model()",
        PLAIN,
        "assistant_model asks for another way",
    ),
    Option("negative_prompt_ids", "negative_prompt_ids=ids[:, :4]", batch=None),
    Option(
        "negative_prompt_attention_mask",
        "negative_prompt_ids=ids[:, :4], guidance_scale=1.3, "
        "negative_prompt_attention_mask=torch.tensor([[0, 1, 1, 1]])",
        batch=None,
    ),
    Option(
        "custom_generate",
        "custom_generate=other_loop",
        PLAIN,
        "custom_generate asks for another way",
    ),
]

LENGTH = [
    Option("max_length", "max_length=27, max_new_tokens=None"),
    Option("max_new_tokens", "max_new_tokens=5"),
    Option("max_new_tokens", "max_new_tokens=0", REFUSED, "must be greater than 0"),
    Option("min_length", "min_length=24, eos_token_id=end"),
    Option("min_new_tokens", "min_new_tokens=6, eos_token_id=end"),
    Option("early_stopping", "early_stopping=True", note="of beam search"),
    Option("max_time", "max_time=600.0", note="asked after every token"),
    Option(
        "stop_strings",
        "stop_strings=[tokenizer.decode(new[4:6])], tokenizer=tokenizer, eos_token_id=127",
    ),
    Option(
        "stop_strings",
        "stop_strings=[tokenizer.decode(new[4:6])], tokenizer=tokenizer",
        batch="go on behind their stop strings",
    ),
    Option("stop_strings", "stop_strings=['a']", REFUSED, "tokenizer"),
]

STRATEGY = [
    Option("do_sample", "do_sample=True"),
    Option("num_beams", "num_beams=2", PLAIN, BEAMS),
    Option("num_beams", "num_beams=2, do_sample=True", PLAIN, "beam sample"),
    Option("use_mtp", "use_mtp=True", REFUSED, "num_mtp_layers"),
    Option("num_return_sequences", "num_return_sequences=2", REFUSED, "Greedy methods"),
    Option(
        "num_return_sequences",
        "num_return_sequences=2, do_sample=True",
        note="a batch",
    ),
    Option("num_beam_groups", "num_beam_groups=2, num_beams=2", REFUSED, HUB),
    Option("diversity_penalty", "diversity_penalty=0.5", note="of beam search"),
    Option("length_penalty", "length_penalty=2.0", note="of beam search"),
    Option("constraints", "constraints=[1]", REFUSED, HUB),
    Option("force_words_ids", "force_words_ids=[[5]]", REFUSED, HUB),
    Option("penalty_alpha", "penalty_alpha=0.6, top_k=4", REFUSED, HUB),
    Option("dola_layers", "dola_layers='high'", REFUSED, HUB),
    Option("low_memory", "low_memory=True", note="of contrastive search"),
]

CACHES = [
    Option("use_cache", "use_cache=True"),
    Option("use_cache", "use_cache=False", PLAIN, "use_cache=False"),
    Option("cache_implementation", "cache_implementation='dynamic'"),
    Option("cache_implementation", "cache_implementation='static'"),
    Option(
        "cache_implementation",
        "cache_implementation='quantized', cache_config={'backend': 'fp8'}",
        PLAIN,
        "quantised cache turns rounding into steps",
    ),
    Option(
        "cache_implementation",
        "cache_implementation='offloaded'",
        PLAIN,
        "offloaded to the CPU",
        runs=False,
    ),
    Option(
        "cache_implementation",
        "cache_implementation='paged'",
        PLAIN,
        "continuous batching",
        runs=False,
    ),
    Option("cache_implementation", "cache_implementation='other'", REFUSED, "Invalid"),
    Option("cache_config", "cache_implementation='static', cache_config={'a': 1}"),
    Option("max_cache_len", "cache_implementation='static', max_cache_len=90"),
    Option("prefill_chunk_size", "prefill_chunk_size=5"),
]

LOGITS = [
    Option("temperature", "temperature=0.7, do_sample=True"),
    Option("temperature", "temperature=0.0, do_sample=True", REFUSED, "strictly positive"),
    *(
        Option(name, f"{name}={value}, do_sample=True")
        for name, value in [
            ("top_k", 5),
            ("top_p", 0.7),
            ("min_p", 0.1),
            ("top_h", 0.5),
            ("typical_p", 0.6),
            ("epsilon_cutoff", 0.01),
            ("eta_cutoff", 0.01),
        ]
    ),
    Option("repetition_penalty", "repetition_penalty=1.3"),
    Option("encoder_repetition_penalty", "encoder_repetition_penalty=1.3"),
    Option("no_repeat_ngram_size", "no_repeat_ngram_size=2"),
    Option("encoder_no_repeat_ngram_size", "encoder_no_repeat_ngram_size=2"),
    Option("bad_words_ids", "bad_words_ids=[[new[1]], new[3:5]]"),
    Option("renormalize_logits", "renormalize_logits=True"),
    Option("forced_bos_token_id", "forced_bos_token_id=11"),
    Option("forced_eos_token_id", "forced_eos_token_id=[12, 13]"),
    Option("remove_invalid_values", "remove_invalid_values=True"),
    Option(
        "exponential_decay_length_penalty",
        "exponential_decay_length_penalty=(4, 1.5), eos_token_id=end",
    ),
    Option("suppress_tokens", "suppress_tokens=[new[2], new[7]]"),
    Option("begin_suppress_tokens", "begin_suppress_tokens=[new[0]]"),
    Option("sequence_bias", "sequence_bias=[[[new[0], new[1]], -8.0], [[50], 4.0]]"),
    Option("token_healing", "token_healing=True", REFUSED, "tokenizer"),
    Option(
        "guidance_scale",
        "guidance_scale=1.7",
        batch=AT_ONCE,
        note="its own passes are single ones, one for each token",
    ),
    Option("watermarking_config", "watermarking_config=WatermarkingConfig(bias=3.0)"),
    Option(
        "watermarking_config",
        "watermarking_config=SynthIDTextWatermarkingConfig(ngram_len=3, keys=[654, 400])",
        batch=AT_ONCE,
    ),
]

OUTPUTS = [
    Option("return_dict_in_generate", "return_dict_in_generate=True"),
    *(
        Option(name, f"{name}=True, return_dict_in_generate=True")
        for name in ("output_scores", "output_logits", "output_hidden_states")
    ),
    Option(
        "output_attentions",
        "output_attentions=True, return_dict_in_generate=True",
        note="empty tuples, as in plain, unless the attention is eager",
    ),
]

TOKENS = [
    Option("pad_token_id", "pad_token_id=5, eos_token_id=end"),
    Option("bos_token_id", "bos_token_id=3"),
    Option("eos_token_id", "eos_token_id=end"),
    Option("eos_token_id", "eos_token_id=[end, 3]"),
    Option("eos_token_id", "eos_token_id=None"),
    Option("decoder_start_token_id", "decoder_start_token_id=3", note="of encoder-decoder models"),
]

ASSISTED = [
    Option("is_assistant", "is_assistant=True", REFUSED, "NoneType"),
    Option(
        "prompt_lookup_num_tokens",
        "prompt_lookup_num_tokens=3, eos_token_id=127",
        PLAIN,
        "assisted generation",
        batch=None,
        note="leave it out: it is slower",
    ),
    *(
        Option(name, f"{name}={value!r}", note="of assisted generation")
        for name, value in [
            ("num_assistant_tokens", 5),
            ("num_assistant_tokens_schedule", "constant"),
            ("assistant_confidence_threshold", 0.4),
            ("assistant_lookbehind", 5),
            ("target_lookbehind", 5),
            ("assistant_ensemble_weight", 0.5),
            ("max_matching_ngram_size", 2),
            ("speculation_type", "dflash"),
        ]
    ),
    Option(
        "assistant_early_exit",
        "assistant_early_exit=1",
        PLAIN,
        "assisted generation",
        batch=None,
        note="see the source `exit` for ours",
    ),
]

RUNNING = [
    Option("compile_config", "compile_config=CompileConfig()", note="see [caches](plain.md)"),
    Option("disable_compile", "disable_compile=True"),
    Option(
        "continuous_batching_config",
        "continuous_batching_config=ContinuousBatchingConfig()",
        note="of `generate_batch`",
    ),
    Option("transformers_version", "transformers_version='5.0'"),
]

SECTIONS = {
    "Inputs": INPUTS,
    "Arguments": ARGUMENTS,
    "Length": LENGTH,
    "Strategy": STRATEGY,
    "Cache": CACHES,
    "Logits": LOGITS,
    "Outputs": OUTPUTS,
    "Special tokens": TOKENS,
    "Assisted generation": ASSISTED,
    "Compilation and others": RUNNING,
}
TABLE = [option for section in SECTIONS.values() for option in section]


def accepted() -> set[str]:
    """Return every public name that the installed library accepts."""
    parameters = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    return parameters | {name for name in vars(GenerationConfig()) if not name.startswith("_")}


HEAD = """# What becomes of each option

Written from the table in `tests/options_table.py` by `python -m tests.options_table`. A test runs
every call of it, plain and accelerated, and fails where the installed transformers accepts
something that has no row here.

- **fast**: accelerated, with the same output; sampled calls with the same seed.
- **plain**: the library's own loop runs, with one warning that names the reason; `strict=True`
  raises instead. The reasons are explained in [what runs plain](plain.md).
- **refused**: the library raises, accelerated or not, with the same message.

In the calls `ids` is a prompt, `new` what plain decoding adds to it, and `end` a token of that. A
batch is greedy here.
"""


#: Options that go to the model, or that ``generate`` takes out before it looks.
MODEL_INPUTS = {
    *("input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids"),
    *("cache", "past_key_values", "logits_to_keep", "tokenizer", "assistant_tokenizer"),
    *("trust_remote_code", "an unknown name"),
}


def document() -> str:
    """Return docs/options.md."""
    return "\n".join([HEAD.rstrip(), *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for title, options in SECTIONS.items():
        yield f"\n## {title}\n"
        yield "| option | call | alone | in a batch | note |"
        yield "|---|---|---|---|---|"
        for one in options:
            in_batch = {None: "", "": one.verdict}.get(one.batch, PLAIN)
            if one.verdict != FAST and one.batch is not None:
                in_batch = one.verdict
            note = f"{one.says}; {one.note}" if one.note and one.says else one.note or one.says
            cells = [f"`{one.name}`", f"`{one.call}`", one.verdict, in_batch, note or one.batch]
            yield "| " + " | ".join(cell or "" for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(document(), "utf-8")
