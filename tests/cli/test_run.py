from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import transformers

import lookahead
from lookahead.cli.run import Totals, accelerated_everywhere

SCRIPT = """
import copy, sys
import torch, transformers
torch.manual_seed(0)
config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, eos_token_id=None)
model = transformers.LlamaForCausalLM(config).eval()
ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
def write(model):
    return model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0].tolist()
first = write(model)
assert write(model) == first
assert write(copy.deepcopy(model)) == first
print(__name__, sys.argv[1:], first, type(model.generate).__name__)
"""
ENDS = ["sys.exit(7)", "raise ValueError('broken')", "raise KeyboardInterrupt"]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as cache:  # what is learnt here is not for the user
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "XDG_CACHE_HOME": cache},
        )


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_under_python(tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nprint(sys.argv[1:], __name__)\n{end}\n")
    ours = run(["-m", "lookahead", "run", str(script), "--flag", "x"])
    theirs = run([str(script), "--flag", "x"])
    assert ours.returncode == theirs.returncode
    assert ours.stdout == theirs.stdout
    assert ours.stderr == theirs.stderr


def test_a_script_is_accelerated_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    plain = run([str(script), "-v"])
    fast = run(["-m", "lookahead", "run", "--nodes", "8", "--stats", str(script), "-v"])
    assert plain.returncode == fast.returncode == 0, fast.stderr
    assert plain.stdout.replace("method", "AcceleratedGenerate") == fast.stdout
    assert "of generate" in fast.stderr
    assert "MAT" in fast.stderr


def test_the_library_is_put_back(tiny: Any) -> None:
    before = transformers.GenerationMixin.generate
    totals = Totals()

    def broken() -> None:
        with accelerated_everywhere(totals, nodes=8):
            tiny.generate(max_new_tokens=4)
            assert "generate" in vars(tiny)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert transformers.GenerationMixin.generate is before
    assert "generate" not in vars(tiny)
    assert lookahead.last_stats(tiny) is None
    assert "1 call of generate, 4 tokens" in totals.summary()


def test_a_class_with_its_own_generate_runs_plain(tiny: Any) -> None:
    class Own(type(tiny)):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    own = Own(tiny.config)
    with accelerated_everywhere(Totals(), nodes=8):
        own.generate(max_new_tokens=4)
    assert "generate" not in vars(own)
