"""Saving and loading, and files that are not what they should be."""

import numpy as np
import pytest

import ngram_pool
from ngram_pool import PoolFileError
from tests.ngram_pool.oracles import assert_same_proposal


@pytest.fixture
def filled(kind):
    rng = np.random.default_rng(4)
    pool = kind(max_tokens=300, max_rows=50)
    for _ in range(20):
        pool.extend(rng.integers(0, 6, 40))
        pool.recycle(
            rng.integers(-1, 6, 5),
            rng.integers(0, 6, 5),
            rng.integers(-1, 9, (5, 8)),
            rng.random((5, 8), np.float32),
        )
        pool.learn(pool.propose(20), [0], [1])
    return pool


@pytest.mark.parametrize("other", ["NgramPool", "DictPool"])
def test_either_pool_loads_what_either_saved(filled, other, tmp_path):
    path = tmp_path / "some.pool"
    filled.save(path)
    loaded = getattr(ngram_pool, other).load(path)
    assert loaded.stats()[:3] == filled.stats()[:3]
    assert (loaded.max_tokens, loaded.max_rows) == (300, 50)
    assert_same_proposal(loaded.propose(40), filled.propose(40))
    # Goes on alike, the order in which rows are forgotten included.
    for pool in (loaded, filled):
        pool.extend([1, 2, 3])
        for token in range(40, 70):
            pool.recycle([token], [token], [[1, 2]], [[0.5, 0.4]])
    assert_same_proposal(loaded.propose(40), filled.propose(40))
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_pool_survives(kind, tmp_path):
    path = str(tmp_path / "empty.pool")
    kind().save(path)
    assert kind.load(path).stats()[:3] == (0, 1, 0)


def test_a_given_calibration_takes_the_place_of_the_stored_one(filled, kind, tmp_path):
    filled.save(tmp_path / "p")
    own = ngram_pool.Calibration()
    assert kind.load(tmp_path / "p", calibration=own).calibration is own


def test_an_older_file_survives_a_failed_save(filled, kind, tmp_path, monkeypatch):
    path = tmp_path / "p"
    filled.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        kind().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_every_truncated_file_is_refused(filled, kind, tmp_path):
    path = tmp_path / "p"
    filled.save(path)
    whole = path.read_bytes()
    for size in [*range(60), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(PoolFileError):
            kind.load(path)


def test_every_flipped_byte_is_noticed(filled, kind, tmp_path):
    path = tmp_path / "p"
    filled.save(path)
    whole = path.read_bytes()
    for place in [*range(60), *np.linspace(60, len(whole) - 1, 60).astype(int).tolist()]:
        broken = bytearray(whole)
        broken[place] ^= 0x10
        path.write_bytes(broken)
        with pytest.raises(PoolFileError):
            kind.load(path)


def test_foreign_files_are_refused_in_one_sentence(kind, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_text("hello")
    with pytest.raises(PoolFileError, match="not a file of this version"):
        kind.load(foreign)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(PoolFileError, match="not a file of this version"):
        kind.load(tmp_path / "other.npz")
    with pytest.raises(PoolFileError, match="Cannot read"):
        kind.load(tmp_path / "missing")
    with pytest.raises(PoolFileError, match="Cannot read"):
        kind.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", np.array([-1], np.int32)),
        ("tokens", np.array([1.0])),
        ("tokens", np.array([{}], object)),
        ("keys", np.array([[1, 2], [1, 2]], np.int32)),
        ("row_tokens", np.array([[1]], np.int32)),
        ("row_probs", np.full((1, 8), np.nan, np.float32)),
        ("max_rows", np.array(0)),
        ("max_tokens", np.array("x")),
        ("calibration_counts", np.ones((5, 2), np.float32)),
    ],
)
def test_a_well_formed_file_with_wrong_content_is_refused(kind, tmp_path, name, value, monkeypatch):
    from ngram_pool import storage

    pool = kind()
    pool.extend([1, 2])
    pool.recycle([-1], [2], [[1]], [[0.5]])
    path = tmp_path / "p"
    real = np.savez_compressed

    def forged(file, **arrays):
        arrays.pop("allow_pickle", None)
        arrays[name] = value
        real(file, **arrays)

    monkeypatch.setattr(storage.np, "savez_compressed", forged)
    pool.save(path)
    with pytest.raises(PoolFileError, match="does not hold a pool"):
        kind.load(path)
