"""Kind J: batches, as far as they are accelerated."""

from __future__ import annotations

import pytest
import torch

import lookahead
from lookahead.hf import target as target_module
from tests.helpers import FAMILIES, VOCAB, Recorder, check, fresh, prompt, run, shared


def ragged(lengths, seed=1, pad=0):
    """Return left-padded ids and their mask."""
    rows = [prompt(n, seed=seed + i, repeat=min(4, n // 3))[0] for i, n in enumerate(lengths)]
    ids = torch.full((len(rows), max(lengths)), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, ids.shape[1] - len(row) :] = row
        mask[i, ids.shape[1] - len(row) :] = 1
    return ids, mask


class ByRow:
    """Right for one row, wrong for another, random for a third, silent for the rest."""

    name = "by-row"

    def __init__(self, texts):
        self.texts = texts
        self.random = torch.Generator().manual_seed(0)

    def draft(self, context, max_nodes):
        for row, (prompt_ids, text) in enumerate(self.texts):
            if context[: len(prompt_ids)] == prompt_ids:
                right = text[len(context) : len(context) + 4]
                if row == 0:
                    return right
                if row == 1:
                    return [(t + 1) % VOCAB for t in right]
                if row == 2:
                    return torch.randint(0, VOCAB, (4,), generator=self.random).tolist()
        return None


def _drafter(model, ids, mask, num):
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=num, do_sample=False)
    texts = []
    for row, live, out in zip(ids.tolist(), mask.tolist(), plain.tolist(), strict=True):
        start = live.index(1)
        texts.append((row[start:], out[start:]))
    return ByRow(texts)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
@pytest.mark.parametrize("lengths", [(12, 12), (1, 30), (9, 3, 17, 26, 1)])
def test_j1_rows_of_different_lengths_give_what_plain_gives(lengths, family, attention):
    """J1: batch_size > 1 raised a bare error."""
    model = shared(family, attention=attention)
    ids, mask = ragged(lengths)
    check(model, ids, attention_mask=mask, max_new_tokens=24, do_sample=False)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_j1_each_row_is_its_own_single_run(family):
    """J1: batched rows are as good as single ones."""
    model = shared(family)
    ids, mask = ragged((5, 19, 11))
    fast = run(model, ids, attention_mask=mask, max_new_tokens=24, do_sample=False).fast
    for row, live, out in zip(ids, mask, fast, strict=True):
        alone = row[live.bool()][None]
        single = model.generate(alone, max_new_tokens=24, do_sample=False)
        assert out[ids.shape[1] - alone.shape[1] :].tolist() == single[0].tolist()


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_j1_rows_end_at_their_own_end_tokens(family):
    """J1: rows that end early are filled up as plain does."""
    model = shared(family)
    ids, mask = ragged((5, 19, 11))
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)
    new = plain[:, ids.shape[1] :]
    for eos in ([int(new[0, 3])], [int(new[0, 0]), int(new[1, 6])], new[:, 4].tolist()):
        check(
            model,
            ids,
            attention_mask=mask,
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=0,
        )


def test_j2_a_batch_is_streamed_as_in_plain():
    """J1: one put a step with a token of every row."""
    model = shared()
    ids, mask = ragged((5, 19, 11))
    streamers = []

    def make():
        streamers.append(Recorder())
        return {"streamer": streamers[-1]}

    check(model, ids, attention_mask=mask, max_new_tokens=16, do_sample=False, make=make)
    plain, fast = ([v.tolist() for v in s.values] for s in streamers)
    assert fast == plain


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"stopping_criteria": [lambda ids, scores, **k: torch.zeros(len(ids), dtype=torch.bool)]},
        {"logits_processor": [lambda ids, scores: scores.roll(1, 0)]},
    ],
)
def test_j1_what_is_not_supported_in_a_batch_runs_plain_with_one_warning(options):
    """J1: falls back to plain with one warning that names the option."""
    model = fresh()
    ids, mask = ragged((5, 19, 11))
    arguments = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False} | options
    torch.manual_seed(0)
    plain = model.generate(ids, **arguments)
    with (  # noqa: PT031
        lookahead.accelerate(model),
        pytest.warns(lookahead.LookaheadWarning, match="runs plain") as warned,
    ):
        for _ in range(2):
            torch.manual_seed(0)
            fast = model.generate(ids, **arguments)
    assert len(warned) == 1
    if not isinstance(plain, torch.Tensor):
        plain, fast = plain.sequences, fast.sequences
    assert fast.tolist() == plain.tolist()


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_j3_rows_that_accept_differently_keep_their_own_lengths(family, monkeypatch):
    """J3: offsets moved by the block for all rows, so short rows had junk keys."""
    model = shared(family)
    ids, mask = ragged((12, 9, 14))
    drafter = _drafter(model, ids, mask, 30)
    lengths = []
    verify = target_module.HFTarget.verify

    def watched(self, slots, trees, windows=None):
        for slot, tree in zip(slots, trees, strict=True):
            if len(self._contexts) != 3:  # the self-test
                break
            lengths.append(
                (slot, self._cache.lengths[self._slots.index(slot)], int(tree.tokens[0]))
            )
        return verify(self, slots, trees, windows)

    monkeypatch.setattr(target_module.HFTarget, "verify", watched)
    runs = check(
        model,
        ids,
        attention_mask=mask,
        max_new_tokens=30,
        do_sample=False,
        settings={"sources": (), "drafters": (drafter,), "nodes": 12},
    )
    for slot, length, root in lengths:
        # The root is the token behind what is cached, padding counted.
        assert int(runs.plain[slot, length]) == root
    per_row = [sum(slot == row for slot, *_ in lengths) for row in range(3)]
    assert per_row[0] < per_row[1]


def test_j5_rows_without_a_draft_stay_in_their_place():
    """J5: rows with no draft were reordered against rows with one."""
    model = shared()
    ids, mask = ragged((12, 9, 14, 5))
    for row in range(4):
        drafter = _drafter(model, ids, mask, 16)
        drafter.texts = [
            (p, t) if i == row else ([-1], []) for i, (p, t) in enumerate(drafter.texts)
        ]
        check(
            model,
            ids,
            attention_mask=mask,
            max_new_tokens=16,
            do_sample=False,
            settings={"sources": (), "drafters": (drafter,), "nodes": 16},
        )


@pytest.mark.parametrize("seed", range(3))
def test_j7_sixteen_rows_are_sixteen_single_runs(seed):
    """J7: at larger batches one odd token appeared now and then."""
    model = shared()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed)).tolist()
    ids, mask = ragged([3 + n for n in order], seed=100)
    runs = check(
        model, ids, attention_mask=mask, max_new_tokens=12, do_sample=False, settings={"nodes": 64}
    )
    for row in range(16):
        alone = ids[row][mask[row].bool()][None]
        single = model.generate(alone, max_new_tokens=12, do_sample=False)[0].tolist()
        assert runs.fast[row, ids.shape[1] - alone.shape[1] :].tolist() == single
