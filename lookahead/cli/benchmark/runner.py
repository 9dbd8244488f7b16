"""Runs the arms prompt by prompt, interleaved, and compares every answer with the plain one.

Holds throughout: all arms have answered a turn before any arm sees the next; the order of arms
changes from turn to turn; the warm-up is not recorded.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from lookahead.cli.benchmark.anatomy import Anatomy, dissect
from lookahead.cli.benchmark.arms import Arm, LookaheadArm, arm_failed
from lookahead.cli.benchmark.meters import MemoryMeter, PassMeter
from lookahead.cli.benchmark.prompts import Row
from lookahead.cli.console import CommandError, Tell
from lookahead.cli.conversation import KeptCache, Transcript
from lookahead.cli.streaming import TextStream
from lookahead.hf.pass_clock import PassClock
from lookahead.stats import PARTS

#: Prompts are cut to so many ids.
PROMPT_LIMIT = 1500
WARM_UP = "Write a short poem about the sea, then say in one sentence what it is about."
WARM_UP_TOKENS = 32
#: An answer is a loop if its last LOOP_TAIL ids repeat with a period of at most LOOP_PERIOD.
LOOP_TAIL = 32
LOOP_PERIOD = 8


@dataclass(frozen=True)
class Protocol:
    """How the arms are run."""

    max_new_tokens: int
    sampling: dict[str, Any]
    seed: int
    state: str
    batch_size: int
    repeats: int
    prompt_limit: int
    is_cache_passed_on: bool


@dataclass
class Measured:
    """One call of ``generate``; with a batch, sums over its rows."""

    new_ids: list[list[int]]
    cache: Any
    seconds: float
    times_s: list[float]
    passes: int
    drafted: int
    peak_rss_bytes: int
    by_source: dict[str, dict[str, int]]
    time_ms: dict[str, float]
    window_rows: int = 0
    plain_reason: str | None = None


@dataclass
class Record:
    """One answer of one arm to one turn of one row."""

    id: str | int
    subtask: str
    turn: int
    arm: str
    prompt_tokens: int
    new_ids: list[int]
    passes: float
    drafted: float
    seconds: float
    seconds_all: list[float]
    ttft_s: float | None
    gaps_ms: list[float]
    peak_rss_bytes: int
    by_source: dict[str, dict[str, int]]
    time_ms: dict[str, float]
    plain_reason: str | None
    window_rows: float = 0.0
    exact: bool = True
    looping: bool = False

    @property
    def tokens(self) -> int:
        """New tokens, the first included."""
        return len(self.new_ids)


@dataclass
class RowState:
    """What one arm has read and written of one row so far."""

    row: Row
    transcript: Transcript
    kept: KeptCache = field(default_factory=KeptCache)
    prompt_ids: list[int] = field(default_factory=list)


class Runner:
    """The interleaved run.

    Parameters
    ----------
    tokenizer : tokenizer
    arms : list of Arm
        ``plain`` first.
    protocol : Protocol
    memory : MemoryMeter
    """

    def __init__(
        self, tokenizer: Any, arms: Sequence[Arm], protocol: Protocol, memory: MemoryMeter
    ) -> None:
        self._tokenizer = tokenizer
        self._arms = list(arms)
        self._protocol = protocol
        self._memory = memory
        self._meter = PassMeter(arms[0].model)
        self._num_rounds = 0

    def warm_up(self, tell: Tell) -> None:
        """Let each arm answer a prompt that is not counted.

        Raises
        ------
        CommandError
            If one of the library's arms cannot run this model.
        """
        ids = Transcript(self._tokenizer).prompt_ids(WARM_UP)[: self._protocol.prompt_limit]
        length = min(WARM_UP_TOKENS, self._protocol.max_new_tokens)
        for arm in self._arms:
            tell(f"Warming up: {arm.name}", None)
            arm.prepare()
            prompts = [ids[number:] for number in range(arm.num_warm_ups)]
            try:
                for prompt in prompts:
                    batch = [prompt] * self._protocol.batch_size
                    self._call(arm, batch, arm.first_cache(len(batch)), length)
            except (ValueError, RuntimeError, IndexError, NotImplementedError) as error:
                if arm.name == "plain" or isinstance(arm, LookaheadArm):
                    raise
                raise CommandError(arm_failed(arm.name, error)) from error

    def take_apart(self, rows: Sequence[Row], tell: Tell) -> dict[str, Anatomy]:
        """Run the first turn of one row a subtask with and without a clock on each arm's model."""
        found: dict[str, Anatomy] = {}
        few = list({row.subtask: row for row in reversed(rows)}.values())
        arms = [arm for arm in self._arms if arm.can_be_taken_apart]
        if self._protocol.batch_size > 1:
            return found
        for arm in arms:
            tell(f"Taking apart: {arm.name}", None)
            clock, parts = PassClock(arm.model), dict.fromkeys(PARTS, 0.0)
            seconds, passes = [0.0, 0.0], [0, 0]  # of decoding, without and with the clock
            for row in few:
                ids = Transcript(self._tokenizer).prompt_ids(row.turns[0])
                for number, its_clock in enumerate((None, clock)):
                    one = self._call(
                        arm,
                        [ids[: self._protocol.prompt_limit]],
                        arm.first_cache(1),
                        self._protocol.max_new_tokens,
                        its_clock,
                    )
                    seconds[number] += one.seconds - one.times_s[0]
                    passes[number] += one.passes
                for part, ms in one.time_ms.items():
                    parts[part] += ms
            is_ours = isinstance(arm, LookaheadArm)
            # With nodes="auto" the two do not take the same number of passes.
            step_s = seconds[0] / max(1, passes[0])
            found[arm.name] = dissect(clock, parts if is_ours else {}, seconds[1], step_s)
        return found

    def run(self, rows: Sequence[Row], tell: Tell) -> list[Record]:
        """Run all rows through all arms."""
        records: list[Record] = []
        groups = _groups(rows, self._protocol.batch_size)
        for number, group in enumerate(groups):
            tell(f"Prompts of {group[0].subtask}", number / len(groups))
            records += self._run_group(group)
        return records

    def _run_group(self, group: Sequence[Row]) -> list[Record]:
        states = {
            arm.name: [RowState(row, Transcript(self._tokenizer)) for row in group]
            for arm in self._arms
        }
        records: list[Record] = []
        for turn in range(len(group[0].turns)):
            by_arm = {
                arm.name: self._run_turn(arm, states[arm.name], turn) for arm in self._order()
            }
            for arm in self._arms:
                for record, plain in zip(by_arm[arm.name], by_arm["plain"], strict=True):
                    record.exact = record.new_ids == plain.new_ids
                records += by_arm[arm.name]
        return records

    def _order(self) -> list[Arm]:
        """Rotate the arms from round to round, and turn the order round every other round."""
        start = self._num_rounds // 2 % len(self._arms)
        order = self._arms[start:] + self._arms[:start]
        self._num_rounds += 1
        return order if self._num_rounds % 2 else order[::-1]

    def _run_turn(self, arm: Arm, states: Sequence[RowState], turn: int) -> list[Record]:
        """Answer one turn of a group, several times if asked, and keep the median run."""
        limit = self._protocol.prompt_limit
        for state in states:
            state.prompt_ids = state.transcript.prompt_ids(state.row.turns[turn])[:limit]
        prompts = [state.prompt_ids for state in states]
        runs: list[Measured] = []
        num_cached: int | None = None
        for _ in range(self._protocol.repeats):
            cache = self._cache_for(arm, states, num_cached)
            num_cached = 0 if cache is None else int(cache.get_seq_length())
            runs.append(self._call(arm, prompts, cache, self._protocol.max_new_tokens))
            if self._protocol.is_cache_passed_on:
                states[0].kept.put([*prompts[0], *runs[-1].new_ids[0]], runs[-1].cache)
        for state, new_ids in zip(states, runs[-1].new_ids, strict=True):
            state.transcript.add(state.row.turns[turn], state.prompt_ids, new_ids)
        return _records(arm.name, states, turn, runs)

    def _cache_for(self, arm: Arm, states: Sequence[RowState], num_cached: int | None) -> Any:
        """Give the cache of the turn before, cut back to what the first repeat began with."""
        if not self._protocol.is_cache_passed_on or num_cached == 0:
            return arm.first_cache(len(states))
        state = states[0]
        prompt = state.prompt_ids if num_cached is None else state.prompt_ids[: num_cached + 1]
        cache = state.kept.take(prompt)
        return arm.first_cache(len(states)) if cache is None else cache

    def _call(
        self,
        arm: Arm,
        prompts: Sequence[list[int]],
        cache: Any,
        max_new_tokens: int,
        clock: PassClock | None = None,
    ) -> Measured:
        """Call ``generate`` of one arm, with everything measured; a clock looks at its passes."""
        import torch

        from lookahead.hf.batches import until_end

        if self._protocol.state == "cold":
            arm.forget()
        stream = TextStream() if len(prompts) == 1 else None
        options = {"max_new_tokens": max_new_tokens, **self._protocol.sampling}
        self._memory.begin()
        torch.manual_seed(self._protocol.seed)
        if hasattr(arm, "decode"):
            start = time.perf_counter()
            new_ids, result = [arm.decode(prompts[0], stream, options)], None
            seconds = time.perf_counter() - start
        else:
            inputs = _inputs(arm.model, prompts, cache)
            # The result object is wanted for the cache only, which batches do not pass on.
            options |= {"streamer": stream, "return_dict_in_generate": stream is not None}
            options |= arm.options()
            with (
                self._meter if arm.is_metered else nullcontext(),
                nullcontext() if clock is None else clock.running(lambda: _has_begun(stream)),
            ):
                start = time.perf_counter()
                result = arm.model.generate(**inputs, **options)
                width = inputs["input_ids"].shape[1]
                sequences = result if stream is None else result.sequences
                new_ids = sequences[:, width:].tolist()
                seconds = time.perf_counter() - start
        new_ids = [until_end(arm.model, ids) for ids in new_ids]
        times_s = [moment - start for moment in stream.times_s] if stream else []
        return self._measured(arm, new_ids, result, seconds, times_s)

    def _measured(
        self, arm: Arm, new_ids: list[list[int]], result: Any, seconds: float, times_s: list[float]
    ) -> Measured:
        from lookahead.hf.compat import cache_argument

        # Plain decoding has one pass for every token after the first of each row.
        passes, drafted = sum(max(0, len(ids) - 1) for ids in new_ids), 0
        prefill_ms = times_s[0] * 1000 if times_s else 0.0
        measured = Measured(
            new_ids=new_ids,
            cache=None if result is None else getattr(result, cache_argument(arm.model), None),
            seconds=seconds,
            times_s=times_s,
            passes=passes,
            drafted=drafted,
            peak_rss_bytes=self._memory.peak_bytes(),
            by_source={},
            time_ms={"prefill": prefill_ms, "verify": seconds * 1000 - prefill_ms},
        )
        if arm.is_metered and len(new_ids) == 1:
            measured.passes = self._meter.num_passes
            measured.drafted = self._meter.num_drafted
        if isinstance(arm, LookaheadArm):
            _take_stats(measured, arm.model)
        return measured


def _has_begun(stream: TextStream | None) -> bool:
    """Whether the first token is out: what comes before it is the prefill."""
    return stream is not None and bool(stream.times_s)


def _take_stats(measured: Measured, model: Any) -> None:
    """Fill in what the engine says about its last run."""
    import lookahead

    stats = lookahead.last_stats(model)
    if stats is None or not stats.accelerated:
        measured.plain_reason = "no statistics" if stats is None else stats.plain_reason
        return
    measured.passes = len(stats.steps) or stats.passes
    measured.drafted = stats.drafted
    measured.window_rows = stats.window_rows
    measured.time_ms = dict(stats.time_ms)
    measured.by_source = {
        name: {"offered": source.offered, "accepted": source.accepted}
        for name, source in stats.by_source.items()
    }


def _records(
    arm: str, states: Sequence[RowState], turn: int, runs: Sequence[Measured]
) -> list[Record]:
    """One record a row; of a batch, each row has an equal share of seconds and passes."""
    middle = statistics.median_low([run.seconds for run in runs])
    run = next(run for run in runs if run.seconds == middle)
    num_rows = len(states)
    times = run.times_s
    return [
        Record(
            id=state.row.id,
            subtask=state.row.subtask,
            turn=turn + 1,
            arm=arm,
            prompt_tokens=len(state.prompt_ids),
            new_ids=new_ids,
            passes=run.passes / num_rows if num_rows > 1 else run.passes,
            drafted=run.drafted / num_rows if num_rows > 1 else run.drafted,
            seconds=run.seconds / num_rows,
            seconds_all=[one.seconds / num_rows for one in runs],
            ttft_s=times[0] if times else None,
            gaps_ms=[(later - earlier) * 1000 for earlier, later in itertools.pairwise(times)],
            peak_rss_bytes=max(one.peak_rss_bytes for one in runs),
            # Of a batch, the first row stands for all, so that sums are right.
            by_source=run.by_source if number == 0 else {},
            time_ms={part: ms / num_rows for part, ms in run.time_ms.items()},
            plain_reason=run.plain_reason,
            window_rows=run.window_rows / num_rows,
            looping=is_loop(new_ids),
        )
        for number, (state, new_ids) in enumerate(zip(states, run.new_ids, strict=True))
    ]


def is_loop(ids: Sequence[int]) -> bool:
    """Whether the end of an answer repeats itself with a short period."""
    tail = list(ids[-LOOP_TAIL:])
    if len(tail) < LOOP_TAIL:
        return False
    return any(tail[period:] == tail[:-period] for period in range(1, LOOP_PERIOD + 1))


def longest_length(
    tokenizer: Any, rows: Sequence[Row], max_new_tokens: int, prompt_limit: int
) -> int:
    """Most ids, prompt and answer, that a call can reach."""
    longest = len(Transcript(tokenizer).prompt_ids(WARM_UP))
    for row in rows:
        # An answer may come back in other ids, and templates put marks around it: leave room.
        room = (len(row.turns) - 1) * (max_new_tokens * 2 + 32)
        longest = max(longest, len(Transcript(tokenizer).prompt_ids("\n".join(row.turns))) + room)
    return min(longest, prompt_limit) + max_new_tokens


def _groups(rows: Sequence[Row], batch_size: int) -> list[list[Row]]:
    """Batches of rows with the same number of turns; with size 1, the rows in order."""
    if batch_size == 1:
        return [[row] for row in rows]
    groups: list[list[Row]] = []
    for num_turns in sorted({len(row.turns) for row in rows}):
        alike = [row for row in rows if len(row.turns) == num_turns]
        groups += [alike[i : i + batch_size] for i in range(0, len(alike), batch_size)]
    return groups


def _inputs(model: Any, prompts: Sequence[list[int]], cache: Any) -> dict[str, Any]:
    """Ids, padded at the left, with their mask and the cache under its name."""
    from lookahead.hf.batches import left_padded
    from lookahead.hf.compat import cache_argument

    inputs = left_padded(model, prompts)
    if cache is not None:
        inputs[cache_argument(model)] = cache
    return inputs
