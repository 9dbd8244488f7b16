"""Nobody waits for a compiler; without one everything still works."""

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

import ngram_pool
from ngram_pool import ready

ROOT = str(Path(ngram_pool.__file__).parents[1])


def run(code, **environment):
    """Run code in a process of its own; return what it printed."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": ROOT} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.fixture
def fresh(monkeypatch):
    """A process that knows nothing of its kernels yet."""
    state = ready._Readiness()
    monkeypatch.setattr(ready, "_readiness", state)
    return state


def test_importing_the_package_imports_neither_numba_nor_kernels():
    loaded = run("""
        import sys, ngram_pool
        pool = ngram_pool.new_pool()
        print(type(pool).__name__)
        print(any(name in sys.modules for name in ("numba", "ngram_pool.kernels", "torch")))
    """)
    assert loaded == ["DictPool", "False"]


def test_a_filled_cache_is_loaded_at_once_in_a_new_process():
    loaded = run("""
        import time, ngram_pool, numba
        start = time.perf_counter()
        ngram_pool.warm_up()
        took = time.perf_counter() - start
        print(ngram_pool.kernels_ready(), type(ngram_pool.new_pool()).__name__, took < 2)
    """)
    assert loaded == ["True", "NgramPool", "True"]


def test_an_empty_cache_does_not_block_and_a_killed_compiler_harms_nothing(tmp_path):
    printed = run(
        """
        import time, threading, warnings, ngram_pool, numba
        from ngram_pool import ready
        start = time.perf_counter()
        ngram_pool.warm_up()
        ngram_pool.warm_up()
        pool = ngram_pool.new_pool()
        took = time.perf_counter() - start
        pool.extend([1, 2, 1])
        print(took < 2, type(pool).__name__, ngram_pool.kernels_ready())
        print(pool.propose(1).tokens.tolist()[1], threading.active_count())
        ready._readiness.compiler.kill()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ngram_pool.warm_up(block=True)
        print(len(caught), type(ngram_pool.new_pool()).__name__)
        """,
        NUMBA_CACHE_DIR=str(tmp_path),
    )
    assert printed == ["True", "DictPool", "False", "2", "1", "1", "DictPool"]
    assert not list(tmp_path.rglob("*.ready"))


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle class")
def test_the_compiler_runs_only_where_no_other_wants_to(fresh, tmp_path, monkeypatch):
    said = tmp_path / "said"
    child = (
        "import os, sys; sys.path[:] = {path!r}; from ngram_pool.ready import stand_back; "
        "stand_back(); "
        "about = os.getsid(0), os.getpgid(0) == os.getpid(), os.nice(0), os.sched_getscheduler(0); "
        f"open({str(said)!r}, 'w').write(repr(about)); raise SystemExit(1)"
    )
    monkeypatch.setattr(ready, "CHILD", child)
    monkeypatch.setattr(ready, "stamp_is_valid", lambda: False)
    fresh.start()
    with pytest.warns(RuntimeWarning):
        fresh.wait()
    # Another session would share the processors evenly with this one, whatever its priority.
    assert said.read_text() == repr((os.getsid(0), True, 19, os.SCHED_IDLE))


@pytest.mark.slow
def test_an_empty_cache_is_filled_aside_by_several_processes_at_once(tmp_path):
    code = "import ngram_pool; ngram_pool.warm_up(block={}); print(ngram_pool.kernels_ready())"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    printed = []
    threads = [
        threading.Thread(target=lambda: printed.append(run(code.format(True), **environment)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printed == [["True"], ["True"]]
    assert len(list(tmp_path.rglob("*.ready"))) == 1
    assert run(code.format(False), **environment) == ["True"]


def test_until_kernels_are_ready_new_pool_is_plain_python(fresh):
    assert not ngram_pool.kernels_ready()
    assert isinstance(ngram_pool.new_pool(), ngram_pool.DictPool)
    ngram_pool.warm_up(block=True)
    assert ngram_pool.kernels_ready()
    assert isinstance(ngram_pool.new_pool(), ngram_pool.NgramPool)


def test_new_pool_hands_its_arguments_on():
    calibration = ngram_pool.Calibration()
    pool = ngram_pool.new_pool(calibration, max_tokens=5, max_rows=6)
    assert pool.calibration is calibration
    assert (pool.max_tokens, pool.max_rows) == (5, 6)


def test_a_missing_numba_warns_once_and_plain_python_serves(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.warns(RuntimeWarning, match="plain Python"):
        ngram_pool.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ngram_pool.warm_up(block=True)
        assert isinstance(ngram_pool.new_pool(), ngram_pool.DictPool)
    with pytest.raises(RuntimeError, match="use DictPool"):
        ngram_pool.NgramPool()


def test_a_failing_compiler_warns_once_with_its_reason(fresh, monkeypatch):
    monkeypatch.setattr(ready, "stamp_is_valid", lambda: False)
    monkeypatch.setattr(ready, "CHILD", "raise SystemExit('no compiler today')")
    ngram_pool.warm_up()
    with pytest.warns(RuntimeWarning, match="no compiler today"):
        fresh.wait()
    assert isinstance(ngram_pool.new_pool(), ngram_pool.DictPool)


def test_an_incomplete_cache_is_never_loaded(fresh, monkeypatch):
    """Loading it would compile in the calling thread."""
    monkeypatch.setattr(ready, "stamp_is_valid", lambda: False)
    monkeypatch.setattr(ready, "CHILD", "pass")
    with pytest.warns(RuntimeWarning, match="incomplete"):
        ngram_pool.warm_up(block=True)
    assert not ngram_pool.kernels_ready()


def test_a_program_without_an_interpreter_starts_no_process(fresh, monkeypatch):
    monkeypatch.setattr(ready, "stamp_is_valid", lambda: False)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.warns(RuntimeWarning, match="no Python executable"):
        ngram_pool.warm_up()


def test_many_threads_start_one_compiler(fresh, monkeypatch):
    started = []
    real = subprocess.Popen

    def counted(*arguments, **keywords):
        started.append(1)
        return real(*arguments, **keywords)

    monkeypatch.setattr(subprocess, "Popen", counted)
    monkeypatch.setattr(ready, "stamp_is_valid", lambda: bool(started) and ended.is_set())
    monkeypatch.setattr(ready, "CHILD", "pass")
    ended = threading.Event()
    threads = [threading.Thread(target=ngram_pool.warm_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    fresh.wait()
    assert len(started) == 1
    assert ngram_pool.kernels_ready()


def test_a_removed_cache_file_makes_the_stamp_invalid(tmp_path, monkeypatch):
    monkeypatch.setattr(ready, "_identity", lambda: (tmp_path, "s", "m"))
    assert not ready.stamp_is_valid()
    (tmp_path / "kernels_x.nbi").touch()
    stamp = tmp_path / "ngram_pool-s-m.ready"
    stamp.write_text('["kernels_x.nbi"]')
    assert ready.stamp_is_valid()
    (tmp_path / "kernels_x.nbi").unlink()
    assert not ready.stamp_is_valid()
    for broken in ("", "[]", "nonsense"):
        stamp.write_text(broken)
        assert not ready.stamp_is_valid()


def test_kernels_of_other_sources_are_removed_before_compiling(tmp_path, monkeypatch):
    """Numba would go on using a kernel whose helper in another file has changed."""
    monkeypatch.setattr(ready.importlib, "import_module", lambda _: None)
    old = [tmp_path / "kernels_text.nbi", tmp_path / "ngram_pool-old-m.ready"]
    for file in (*old, tmp_path / "foreign.nbi"):
        file.touch()
    ready._fill_cache(tmp_path, "new", "m")
    assert not any(file.exists() for file in old)
    assert (tmp_path / "foreign.nbi").exists()
    (tmp_path / "kernels_text.nbi").touch()
    ready._fill_cache(tmp_path, "new", "other-machine")
    assert (tmp_path / "kernels_text.nbi").exists()
