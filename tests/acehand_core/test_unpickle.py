"""Pickles are read without running them; npz files without pickles."""

import builtins
import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from acehand_core import unpickling
from acehand_core.errors import InputError, SchemaError, UnsafeFileError
from acehand_core.safe_files import safe_load_npz
from acehand_core.unpickling import MANO_PKL, NPY_OBJECT, load_npy_object, restricted_load

PROTOCOLS = range(6)


def load(data: bytes, allow=MANO_PKL):
    return restricted_load(io.BytesIO(data), allow, "test file")


class Calls:
    """Pickles as a call of ``function`` with ``args``, followed by a state."""

    def __init__(self, function, *args, state=None):
        self.call = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.call


class MakesFile:
    """Pickles as an attack that creates ``path`` when an ordinary unpickler reads it."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


def object_array(*entries):
    out = np.empty(len(entries), object)
    out[:] = entries
    return out


def attacks(canary: Path):
    attack = MakesFile(canary)
    touch = f"open({str(canary)!r}, 'w').close()"
    return {
        "os.system": attack,
        "builtins.eval": Calls(builtins.eval, touch),
        "builtins.exec": Calls(builtins.exec, touch),
        "inside containers": {"a": [1, (2, {"b": attack})]},
        "in an object array": object_array(1, attack),
        "in an array of arrays": object_array(object_array(attack)),
        "as a dict key": {attack: 1},
        "in the state of a listed class": Calls(
            np.ndarray.__reduce__(np.zeros(1))[0], np.ndarray, (0,), b"b", state=attack
        ),
        "getattr chain": Calls(getattr, Calls(__import__, "os"), "system"),
        "a dtype that runs": Calls(np.dtype, attack),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", attacks(Path("x")))
def test_attacks_are_refused_and_never_run(kind, protocol, canary):
    data = pickle.dumps(attacks(canary)[kind], protocol)
    with pytest.raises(UnsafeFileError, match="test file"):
        load(data)
    assert not canary.exists()


def test_the_attacks_are_real(canary):
    pickle.loads(pickle.dumps(attacks(canary)["in an array of arrays"]))
    assert canary.exists()


def global_(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


HAND_MADE = {
    # name smuggled through a dotted attribute path of protocol 4
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x1ccore.multiarray._reconstruct\x93.",
    "module attribute of numpy": global_("numpy", "load") + b"(S'x'\ntR.",
    "numpy.core private": global_("numpy.core.multiarray", "fromfile") + b".",
    "reconstruct something else": global_("numpy.core.multiarray", "_reconstruct")
    + b"("
    + global_("__builtin__", "object")
    + b"(I0\ntS'b'\ntR.",
    "reconstructor of a non-class": global_("copy_reg", "_reconstructor") + b"(I1\nI2\nNtR.",
    "change a class": b"\x80\x02"
    + global_("numpy", "ndarray")
    + b"N}(U\x05valueI1\nu\x86b.",
    "change a class through a slot state": b"\x80\x02"
    + global_("__builtin__", "bytes")
    + b"}(U\x05valueI1\nu}(U\x0c__setstate__I1\nu\x86b.",
    "call data": b"(lp0\n(I1\ntR.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"Pfile\n.",
    "structured dtype with forged flags": b"\x80\x02"
    + global_("numpy", "dtype")
    + b"U\x02V8K\x00K\x01\x87R(K\x03U\x01|NNNK\x08K\x01K\x00tb.",
    "bare class": global_("numpy", "ndarray") + b".",
    "loop": b"(lp0\ng0\na.",
}  # fmt: skip


@pytest.mark.parametrize("kind", HAND_MADE)
def test_hand_made_pickles_are_refused(kind):
    def classes():
        return {n: dict(vars(c)) for n, c in vars(unpickling).items() if isinstance(c, type)}

    before = classes()
    with pytest.raises(UnsafeFileError):
        load(HAND_MADE[kind])
    assert classes() == before


def test_the_message_names_file_global_and_what_would_be_valid(tmp_path):
    path = tmp_path / "MANO_LEFT.pkl"
    path.write_bytes(pickle.dumps(MakesFile(tmp_path / "canary")))
    named = r"MANO_LEFT\.pkl.*(posix|nt)\.system.*numpy\.core\.multiarray\._reconstruct"
    with pytest.raises(UnsafeFileError, match=named):
        restricted_load(path, NPY_OBJECT, "MANO .pkl")


@pytest.mark.parametrize("lie", [
    {"shape": (1 << 40,)}, {"shape": (-1,)}, {"raw": bytes(15)}, {"dtype": np.dtype("O")},
    {"dtype": "f8"}, {"dtype": Calls(np.dtype, "S999999999")},
], ids=["shape", "negative", "short", "objects", "no dtype", "huge text"])  # fmt: skip
def test_arrays_that_lie_about_themselves(lie):
    said = {"shape": (2,), "dtype": np.dtype("f8"), "raw": bytes(16), **lie}
    state = (1, said["shape"], said["dtype"], False, said["raw"])
    array = Calls(np.zeros(1).__reduce__()[0], np.ndarray, (0,), b"b", state=state)
    with pytest.raises(UnsafeFileError):
        load(pickle.dumps(array, 2))


def test_big_promises_cost_nothing():
    assert load(b"\x80\x02]r\xff\xff\xff\xff.") == []
    with pytest.raises(InputError):
        load(b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"abc.")
    matrix = sparse.csc_matrix(np.eye(3))
    matrix.indices[1] = 1 << 20
    with pytest.raises(UnsafeFileError, match="sparse"):
        load(pickle.dumps(matrix))


def samples():
    return {
        "numbers": {"i": 1, "f": 2.5, "b": True, "n": None, "t": (1, "ä"), "y": b"\xff"},
        "floats": np.arange(6.0).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "big endian": np.arange(3, dtype=">i4"),
        "strided": np.arange(10)[::2],
        "empty": np.zeros((0, 3)),
        "zero-d": np.array(3.0),
        "text": np.array(["ab", "c"]),
        "bytes": np.array([b"ab"]),
        "bool": np.array([True, False]),
        "scalar": np.float32(2.5),
        "objects": object_array({"a": np.arange(2)}, None),
        "sets": {"s": {1, 2}, "f": frozenset([3])},
        "ordered": collections.OrderedDict(a=1, b=2),
        "shared": [[1]] * 2,
    }


def assert_same(a, b):
    if isinstance(b, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        for x, y in zip(a.ravel(), b.ravel(), strict=True):
            assert_same(x, y)
    elif isinstance(b, dict):
        assert list(a) == list(b)
        for key in b:
            assert_same(a[key], b[key])
    else:
        assert type(a) is type(b)
        assert a == b


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", samples())
def test_data_round_trips(kind, protocol):
    value = samples()[kind]
    loaded = load(pickle.dumps(value, protocol), NPY_OBJECT)
    assert_same(loaded, dict(value) if kind == "ordered" else value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("make", [sparse.csc_matrix, sparse.csr_matrix])
def test_sparse_matrices_from_old_and_new_scipy(make, protocol):
    dense = np.arange(12.0).reshape(3, 4) % 5
    data = pickle.dumps(make(dense), protocol)
    kind = "csc" if make is sparse.csc_matrix else "csr"
    if protocol < 4:  # newer protocols store the length of each name
        old = data.replace(f"scipy.sparse._{kind}".encode(), f"scipy.sparse.{kind}".encode())
        assert old != data
        np.testing.assert_array_equal(load(old).toarray(), dense)
    np.testing.assert_array_equal(load(data).toarray(), dense)
    with pytest.raises(UnsafeFileError):
        load(data, NPY_OBJECT)


@pytest.fixture
def chumpy(monkeypatch):
    """A module named chumpy that exists only while the test pickles."""
    package, ch, reordering = (
        types.ModuleType(name) for name in ("chumpy", "chumpy.ch", "chumpy.reordering")
    )
    ch.Ch = type("Ch", (), {"__module__": "chumpy.ch"})
    reordering.Select = type("Select", (ch.Ch,), {"__module__": "chumpy.reordering"})
    for module in (package, ch, reordering):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return ch, reordering


def as_python2(data: bytes) -> bytes:
    """Rename modules as Python 2 and numpy 1 wrote them (protocols 0 to 3)."""
    return data.replace(b"numpy._core", b"numpy.core")


@pytest.mark.parametrize("protocol", range(4))
def test_chumpy_objects_are_read_as_arrays(chumpy, protocol):
    ch, reordering = chumpy
    constant, select = ch.Ch(), reordering.Select()
    constant.x = np.arange(24.0).reshape(2, 3, 4)
    constant._dirty_vars, constant._itr, constant._make_dense = set(), None, False
    select.a, select.idxs, select.preferred_shape = constant, np.arange(24)[::2], (2, 3, 2)
    data = as_python2(pickle.dumps({"plain": constant, "select": select}, protocol))
    sys.modules.pop("chumpy.ch")
    loaded = load(data)
    np.testing.assert_array_equal(loaded["plain"], constant.x)
    np.testing.assert_array_equal(loaded["select"], constant.x[..., ::2])
    assert type(loaded["select"]) is np.ndarray
    with pytest.raises(UnsafeFileError, match="chumpy"):
        load(data, NPY_OBJECT)


def test_a_selection_outside_its_array_is_refused(chumpy):
    _, reordering = chumpy
    select = reordering.Select()
    select.a, select.idxs, select.preferred_shape = np.zeros(3), np.array([99]), (1,)
    with pytest.raises(UnsafeFileError, match="selection"):
        load(pickle.dumps(select, 2))


def test_npy_of_objects(tmp_path, canary):
    path = tmp_path / "a.npy"
    np.save(path, {"rot": np.eye(3), "n": 2}, allow_pickle=True)
    loaded = load_npy_object(path)
    assert loaded.shape == ()
    np.testing.assert_array_equal(loaded.item()["rot"], np.eye(3))
    np.save(path, MakesFile(canary), allow_pickle=True)
    with pytest.raises(UnsafeFileError, match=r"a\.npy"):
        load_npy_object(path)
    assert not canary.exists()
    np.save(path, np.zeros(3))
    with pytest.raises(SchemaError, match="not objects"):
        load_npy_object(path)
    path.write_bytes(b"no npy at all")
    with pytest.raises(SchemaError):
        load_npy_object(path)


def test_truncated_missing_and_empty(tmp_path):
    data = pickle.dumps({"a": np.arange(1000.0)}, 2)
    for cut in range(0, len(data), 7):
        with pytest.raises(InputError, match="test file"):
            load(data[:cut])
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(SchemaError, match="test file"):
            load(data[:cut])
    with pytest.raises(InputError, match=r"absent\.pkl"):
        restricted_load(tmp_path / "absent.pkl", MANO_PKL, "MANO .pkl")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_raises_anything_but_an_input_error(data):
    value = {"a": np.arange(4.0), "s": sparse.csc_matrix(np.eye(2)), "o": object_array(1, "x")}
    raw = bytearray(pickle.dumps(value, data.draw(st.sampled_from(PROTOCOLS))))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        load(bytes(raw))
    except InputError:
        return


def test_npz_without_pickles(tmp_path, canary):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.eye(2), b=np.array(["x"]))
    np.testing.assert_array_equal(safe_load_npz(path)["a"], np.eye(2))
    np.savez(path, good=np.eye(2), bad=object_array(MakesFile(canary)))
    with pytest.raises(UnsafeFileError, match=r"a\.npz: 'bad'"):
        safe_load_npz(path)
    np.savez_compressed(path, a=np.zeros(100_000))
    with pytest.raises(UnsafeFileError, match="unpacks to"):
        safe_load_npz(path, max_bytes=1000)
    path.write_bytes(pickle.dumps(MakesFile(canary)))
    with pytest.raises(SchemaError, match="not an npz"):
        safe_load_npz(path)
    with pytest.raises(InputError):
        safe_load_npz(tmp_path / "absent.npz")
    assert not canary.exists()


@pytest.mark.parametrize("kind", ["STORED", "DEFLATED", "BZIP2", "LZMA"])
def test_a_damaged_npz_is_an_input_error(kind, tmp_path):
    """One byte in the middle of its array is another one."""
    path, array = tmp_path / "a.npz", io.BytesIO()
    np.save(array, np.random.default_rng(0).normal(size=100))
    with zipfile.ZipFile(path, "w", getattr(zipfile, f"ZIP_{kind}")) as archive:
        archive.writestr("joints.npy", array.getvalue())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.npz"):
        safe_load_npz(path)
