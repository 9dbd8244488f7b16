"""``lookahead explain``: whether and how a model is accelerated, and where answers part."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from lookahead.cli import options
from lookahead.cli.console import open_model, working

#: Draft budgets that are run for a few tokens each, so that the cost of passes is known.
MEASURED_NODES = (0, 1, 3, 7, 15)
MEASURED_TOKENS = 12

#: Rows whose cost is shown; the root is one of them.
SHOWN_ROWS = (1, 2, 4, 8, 16)

#: What is asked where no prompt is given.
PROMPT = "Why is the sky blue? Answer in two sentences, then say the same in one."

#: Only what was stored before is read, and nothing is written: an explanation leaves no trace.
REMEMBER: Final = "calibrated"


def explain(
    model: Annotated[
        str,
        typer.Argument(help="default (embedded), a folder, a .gguf file, or a hub name."),
    ] = "default",
    prompt: Annotated[
        str | None, typer.Argument(help="What to ask; or FILE.jsonl, one prompt a line.")
    ] = None,
    first_difference: Annotated[
        bool,
        typer.Option(
            "--first-difference",
            help="Run each prompt plain and accelerated, and show where the ids part.",
        ),
    ] = False,
    max_new_tokens: options.MaxNewTokensOption = 64,
    nodes: options.NodesOption = "auto",
    no_chat_template: options.NoTemplateOption = False,
    dtype: options.DtypeOption = options.Dtype.auto,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether and how a model is accelerated, or why it runs plain; the report goes to stdout.

    The exit code is 1 if ids differ and rounding does not explain it.

    Examples: lookahead explain default, or
    lookahead explain my/model prompts.jsonl --first-difference
    """
    budget = options.parse_nodes(nodes)
    prompts = _prompts(prompt)
    loaded, tokenizer = open_model(model, dtype, device, threads)
    ids = [_ids(loaded, tokenizer, text, not no_chat_template) for text in prompts]
    with working("Looking at the model") as tell:
        report = _explained(loaded, ids[0], budget, max_new_tokens, tell)
        if first_difference:
            tell("Looking for differences", None)
            found = _differences(loaded, ids, budget, max_new_tokens, tell)
            report["differences"] = [_described(one, tokenizer) for one in found]
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        print("\n".join(_lines(report)))
    if any(one and not one["is_rounding"] for one in report.get("differences", [])):
        raise typer.Exit(1)


def _prompts(prompt: str | None) -> list[str]:
    """Return what to ask: of a file, the first turn of each line."""
    if prompt is None:
        return [PROMPT]
    if prompt.endswith(".jsonl"):
        from lookahead.cli.benchmark.prompts import read_rows

        return [row.turns[0] for row in read_rows(prompt)]
    return [prompt]


def _ids(model: Any, tokenizer: Any, text: str, use_template: bool) -> Any:
    """Return the ids of a prompt, int64, [1, tokens]."""
    import torch

    from lookahead.cli.conversation import Transcript

    transcript = Transcript(tokenizer, use_template=use_template)
    return torch.tensor([transcript.prompt_ids(text)], device=model.device)


def _explained(model: Any, ids: Any, budget: Any, num_new: int, tell: Any) -> dict[str, Any]:
    """Describe the model, measure passes, and answer one prompt."""
    from lookahead.config import Config
    from lookahead.hf.explain import explain as explain_model

    config = Config(nodes=budget, remember=REMEMBER)
    explanation = explain_model(model, config)
    report = explanation.as_dict()
    if explanation.way != "plain":
        tell("Measuring what passes cost", None)
        for nodes in MEASURED_NODES:
            _run(model, ids, nodes, MEASURED_TOKENS)
    tell("Answering the prompt", None)
    stats = _run(model, ids, budget, num_new)
    report["run"] = {
        "accelerated": stats.accelerated,
        "reason": stats.plain_reason,
        "new_tokens": stats.new_tokens,
        "passes": stats.passes,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "nodes_per_pass": stats.nodes_per_pass,
        "break_even": stats.break_even,
        "accepted_by_source": {k: [v.accepted, v.offered] for k, v in stats.by_source.items()},
        "notes": stats.notes,
        "summary": stats.summary(),
    }
    if explanation.way != "plain":
        report["cost"] = _cost(model, config)
    return report


def _run(model: Any, ids: Any, nodes: Any, num_new: int) -> Any:
    """Answer once, greedily, and return the statistics."""
    import warnings

    import lookahead
    from lookahead.errors import LookaheadWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LookaheadWarning)  # the report gives the reason
        with lookahead.accelerate(model, nodes=nodes, remember=REMEMBER):
            model.generate(ids, max_new_tokens=num_new, **options.sampling_options(0, 1.0))
    return lookahead.last_stats(model)


def _cost(model: Any, config: Any) -> dict[str, Any]:
    """Describe the cost curve as it is now."""
    from lookahead.calls import SESSION
    from lookahead.hf.explain import curve_of

    curve = curve_of(model, vars(model)[SESSION], config)
    seconds, relative = curve.seconds(SHOWN_ROWS[-1]), curve.relative(SHOWN_ROWS[-1])
    return {
        "rows": list(SHOWN_ROWS),
        "relative": [float(relative[rows - 1]) for rows in SHOWN_ROWS],
        "seconds_of_one_row": None if seconds is None else float(seconds[0]),
        "measured_passes": curve.measurements,
        "had_stored_curve": bool(curve.as_dict()["stored"]),
    }


def _differences(model: Any, prompts: list[Any], budget: Any, num_new: int, tell: Any) -> list[Any]:
    """Return the first difference on each prompt, or None."""
    import lookahead
    from lookahead.hf.difference import find_difference

    found = []
    asked = {"max_new_tokens": num_new, **options.sampling_options(0, 1.0)}
    with lookahead.accelerate(model, nodes=budget, remember=REMEMBER):
        for number, ids in enumerate(prompts):
            tell("Looking for differences", number / len(prompts))
            found.append(find_difference(model, ids, **asked))
    return found


def _described(found: Any, tokenizer: Any) -> dict[str, Any] | None:
    """Return a difference ready for JSON, with its tokens as text."""
    if found is None:
        return None
    return {
        "index": found.index,
        "plain": {"token": found.plain, "text": tokenizer.decode([found.plain])},
        "accelerated": {"token": found.fast, "text": tokenizer.decode([found.fast])},
        "logits_plain": list(found.plain_logits),
        "logits_accelerated": list(found.fast_logits),
        "gap": found.gap,
        "rounding": found.rounding,
        "is_rounding": found.is_rounding,
    }


def _lines(report: dict[str, Any]) -> list[str]:
    """Return the report as text."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in report["layer_types"].items())
    sources = [name for name, state in report["sources"].items() if state == "used"]
    off = [f"{name} {state}" for name, state in report["sources"].items() if state != "used"]
    what = (
        f"{report['model']}, {report['parameters']:,} parameters, "
        f"{report['dtype']} on {report['device']}, attention {report['attention']}"
    )
    way = {
        "tree": "accelerated: a tree of guesses, verified in one pass",
        "chain": f"accelerated: one branch of guesses at a time, because {report['reason']}",
        "plain": f"plain, because {report['reason']}",
    }[report["way"]]
    rows = [
        ("model", what),
        ("layers", f"{report['layers']}" + (f": {kinds}" if kinds else "")),
        ("way", way),
        ("self-test", report["self_test"]),
    ]
    if report["way"] != "plain":
        rows.append(("sources", ", ".join(sources) + (f" ({'; '.join(off)})" if off else "")))
        rows.append(("fused", report["fused"]))
        rows += _cost_rows(report["cost"])
    rows.append(("run", report["run"]["summary"]))
    rows += [("note", note) for note in report["run"]["notes"]]
    if "differences" in report:
        rows += _difference_rows(report["differences"], report["run"]["accelerated"])
    return [f"{name + ':':<12}{text}" for name, text in rows]


def _cost_rows(cost: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = zip(cost["rows"], cost["relative"], strict=True)
    shown = ", ".join(f"{rows} rows {relative:.2f}" for rows, relative in pairs)
    origin = f"{cost['measured_passes']} passes measured now"
    if cost["had_stored_curve"]:
        origin += ", with the curve of an earlier process"
    one = cost["seconds_of_one_row"]
    first = "" if one is None else f"; one row takes {one * 1000:.1f} ms"
    most = cost["rows"][-1]
    return [
        ("cost", f"relative to one row: {shown}{first} ({origin})"),
        (
            "break-even",
            f"a full pass of {most} rows pays from {cost['relative'][-1]:.2f} tokens a pass",
        ),
    ]


def _difference_rows(found: list[Any], is_accelerated: bool) -> list[tuple[str, str]]:
    if not is_accelerated:
        return [("difference", "none: both runs are plain")]
    differing = [(i, one) for i, one in enumerate(found, start=1) if one is not None]
    rows = [("difference", f"{len(differing)} of {len(found)} answers have other ids than plain")]
    for number, one in differing:
        verdict = "rounding explains it" if one["is_rounding"] else "a fault, please report it"
        text = (
            f"new token {one['index']}: plain {_token(one['plain'])} with logits "
            f"{_pair(one['logits_plain'])}, accelerated {_token(one['accelerated'])} with "
            f"{_pair(one['logits_accelerated'])}; gap {one['gap']:.4g}, logits of the two runs "
            f"differ by up to {one['rounding']:.4g}: {verdict}"
        )
        rows.append((f"prompt {number}", text))
    return rows


def _token(token: dict[str, Any]) -> str:
    return f"{token['token']} {token['text']!r}"


def _pair(logits: list[float]) -> str:
    return f"{logits[0]:.4f} and {logits[1]:.4f}"
