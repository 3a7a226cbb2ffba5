"""Safe reading of pickles: MANO's official files and datasets.

A pickle gets only names of an allow-list, and calling one only records the call, except for plain
containers. Arrays are made afterwards from a checked type, shape and bytes; numpy's reconstructors
would read pointers out of a file with forged dtype flags. Protects against code and forged memory;
a file may still waste time.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from acehand_core.errors import InputError, SchemaError, UnsafeFileError

_MAX_BYTES = 4 << 30
_MAX_DEPTH = 100
_PLAIN = (bool, int, float, str, bytes, type(None))
#: Booleans, integers, floats, complex numbers, byte and unicode strings, objects.
_DTYPE = re.compile(r"(b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,5}|O[48]?)")
#: Other names of modules: of Python 2, numpy 2 and new scipy.
_MODULES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
    "scipy.sparse._csc": "scipy.sparse.csc",
    "scipy.sparse._csr": "scipy.sparse.csr",
}

_STORAGES = {
    "torch.FloatStorage": "<f4", "torch.DoubleStorage": "<f8", "torch.HalfStorage": "<f2",
    "torch.LongStorage": "<i8", "torch.IntStorage": "<i4", "torch.ShortStorage": "<i2",
    "torch.CharStorage": "i1", "torch.ByteStorage": "u1", "torch.BoolStorage": "?",
}  # fmt: skip


class _NotData(Exception):
    """Recorded calls do not describe data."""


class _Call:
    """A recorded call, and the state set on its result."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: Any) -> None:
        self.name, self.args = name, args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


@dataclass(frozen=True, slots=True)
class _Name:
    """A listed name, in place of the class or function."""

    name: str

    def __call__(self, *args: Any) -> Any:
        at_once = _AT_ONCE.get(self.name)
        return _Call(self.name, args) if at_once is None else at_once(*args)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Return bytes as written by old protocols."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise _NotData("it encodes something that is not a byte string")
    return text.encode("latin1")


def _empty(target: Any, *_: Any) -> Any:
    """Return an instance of protocols 0 and 1, or numpy's array; its state follows."""
    if not isinstance(target, _Name):
        raise _NotData("it reconstructs something that is not a listed class")
    return target()


#: Calls evaluated as soon as they are read, since more of the file may go into the result.
_AT_ONCE: dict[str, Callable[..., Any]] = {
    "builtins.set": lambda items=(): set(items),
    "builtins.frozenset": lambda items=(): frozenset(items),
    "builtins.bytes": lambda: b"",
    "collections.OrderedDict": lambda pairs=(): dict(pairs),
    "copyreg._reconstructor": _empty,
    "_codecs.encode": _encode,
    "numpy.core.multiarray._reconstruct": _empty,
}


class _Data:
    """Replaces recorded calls by plain data, each object once."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, Any]] = {}  # keeps objects alive, so ids stay unique
        self._depth = 0

    def __call__(self, item: Any) -> Any:
        if type(item) in _PLAIN:
            return item
        if id(item) not in self._done:
            if self._depth >= _MAX_DEPTH:
                raise _NotData(f"it nests deeper than {_MAX_DEPTH} levels, or in a loop")
            self._depth += 1
            self._done[id(item)] = item, self._made(item)
            self._depth -= 1
        return self._done[id(item)][1]

    def _made(self, item: Any) -> Any:
        if type(item) in (list, tuple, set, frozenset):
            return type(item)([self(entry) for entry in item])
        if type(item) is dict:
            return {self(key): self(entry) for key, entry in item.items()}
        if type(item) is bytearray:
            return bytes(item)
        what, make = _MADE.get(getattr(item, "name", ""), ("", None))
        if type(item) is not _Call or make is None:
            raise _NotData(f"{getattr(item, 'name', type(item).__name__)} is not data")
        try:
            return make(item, self)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _NotData(f"{what} is damaged ({error})") from error


def _dtype(call: Any, data: _Data) -> np.dtype:
    """Return a dtype; structured and dated ones are refused."""
    code = call.args[0]
    if call.name != "numpy.dtype" or type(code) is not str or not _DTYPE.fullmatch(code):
        raise _NotData(f"the array type {code!r} is not a plain one")
    order: Any = call.state[1] if isinstance(call.state, tuple) else "="
    if order not in ("<", ">", "=", "|"):
        raise _NotData(f"{order!r} is not a byte order")
    return np.dtype(code if code[0] != "O" else "O").newbyteorder(order)


def _array(raw: Any, dtype: Any, shape: Any, order: Any, data: _Data) -> np.ndarray:
    """Return a writable array of exactly the bytes, or the list of objects, ``raw``."""
    real, shape = _dtype(dtype, data), (shape,) if type(shape) is int else shape
    count = math.prod(shape)
    if real.hasobject:
        if type(raw) is not list or len(raw) != count:
            raise _NotData(f"an array of {count} objects lacks its list")
        flat = np.empty(count, object)
        for index, entry in enumerate(raw):
            flat[index] = data(entry)
        return flat.reshape(shape, order=order)
    stored = raw.encode("latin1") if type(raw) is str else raw
    if type(stored) not in (bytes, bytearray) or len(stored) != count * real.itemsize:
        raise _NotData(f"an array of shape {shape} and type {real} lacks its bytes")
    return np.frombuffer(stored, real).copy().reshape(shape, order=order)


def _stored_array(call: _Call, data: _Data) -> np.ndarray:
    shape, dtype, fortran, raw = call.state[-4:]
    return _array(raw, dtype, shape, "F" if fortran else "C", data)


def _sparse(call: _Call, data: _Data) -> Any:
    from scipy import sparse

    make = sparse.csc_matrix if call.name.endswith("csc_matrix") else sparse.csr_matrix
    parts = tuple(np.asarray(data(call.state[name])) for name in ("data", "indices", "indptr"))
    matrix = make(parts, shape=data(call.state["_shape"]))
    matrix.check_format(full_check=True)
    return matrix


def _selection(call: _Call, data: _Data) -> np.ndarray:
    """Return selected entries of a flattened array, reshaped."""
    source, indices = (np.asarray(data(call.state[name])) for name in ("a", "idxs"))
    shape = data(call.state.get("preferred_shape", indices.shape))
    return source.ravel()[indices].reshape(shape)


def _storage(call: Any) -> np.ndarray:
    """Return the numbers of a tensor, which ``pickle.dump`` stores in torch's old file layout.

    Five pickles (magic number, version, machine, storage, its keys), the count, and raw numbers.
    """
    (raw,) = call.args
    if call.name != "torch.storage._load_from_bytes" or type(raw) not in (bytes, bytearray):
        raise _NotData("a tensor lacks its bytes")
    stream = io.BytesIO(raw)
    try:
        magic, version, machine, storage, _ = (
            _Unpickler(stream, _IN_TENSOR, "a tensor").load() for _ in range(5)
        )
        (count,) = struct.unpack("<q", stream.read(8))
    except (EOFError, pickle.UnpicklingError, struct.error) as error:
        raise _NotData(f"a tensor is damaged ({error})") from error
    if (magic, version) != (0x1950A86A20F9469CFC6C, 1001) or machine["little_endian"] is not True:
        raise _NotData("a tensor is not in torch's old layout, or not little-endian")
    kind, announced = storage
    dtype, raw = np.dtype(_STORAGES[kind.name]), stream.read()
    if announced != count or len(raw) != count * dtype.itemsize:
        raise _NotData(f"a tensor of {count} numbers has {len(raw)} bytes")
    return np.frombuffer(raw, dtype)


def _tensor(call: _Call, data: _Data) -> np.ndarray:
    """Return a tensor from its storage, shape and strides."""
    flat, (offset, size, stride) = _storage(call.args[0]), call.args[1:4]
    if any(type(n) is not int or n < 0 for n in (offset, *size, *stride)):
        raise _NotData("a tensor's shape is not a shape")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if math.prod(size) > flat.size or (math.prod(size) and last >= flat.size):
        raise _NotData("a tensor reaches past its numbers")
    view = np.lib.stride_tricks.as_strided(
        flat[offset:], size, [step * flat.itemsize for step in stride], writeable=False
    )
    return view.copy()


#: Calls evaluated once the whole file is read, with a word for the result.
_MADE: dict[str, tuple[str, Callable[[_Call, _Data], Any]]] = {
    "numpy.dtype": ("a type", _dtype),
    "numpy.ndarray": ("an array", _stored_array),
    "numpy.core.multiarray.scalar": (
        "a number",
        lambda call, data: _array(call.args[1], call.args[0], (), "C", data)[()],
    ),
    "numpy.core.numeric._frombuffer": ("an array", lambda call, data: _array(*(*call.args, data))),
    "scipy.sparse.csc.csc_matrix": ("a sparse matrix", _sparse),
    "scipy.sparse.csr.csr_matrix": ("a sparse matrix", _sparse),
    "chumpy.ch.Ch": ("a constant", lambda call, data: np.asarray(data(call.state["x"]))),
    "chumpy.reordering.Select": ("a selection", _selection),
    "torch._utils._rebuild_tensor_v2": ("a tensor", _tensor),
}

#: Allow-lists of formats.
NPY_OBJECT = frozenset({*_AT_ONCE, "builtins.object", *(n for n in _MADE if n[:5] == "numpy")})
MANO_PKL = NPY_OBJECT | {name for name in _MADE if name.startswith(("scipy", "chumpy"))}
#: Pickles of numpy arrays and torch tensors.
TORCH_PKL = NPY_OBJECT | {"torch._utils._rebuild_tensor_v2", "torch.storage._load_from_bytes"}
_IN_TENSOR = frozenset({*_AT_ONCE, *_STORAGES})


# The C unpickler reserves memory for any memo index; the Python one does not.
class _Unpickler(pickle._Unpickler):
    read: Callable[[int], bytes]  # both set by ``load``
    append: Callable[[Any], None]

    def __init__(self, file: io.BufferedIOBase, allow: frozenset[str], label: str) -> None:
        super().__init__(file, encoding="latin1")
        self._allow, self._label = allow, label

    def find_class(self, module: Any, name: Any) -> _Name:
        listed = f"{_MODULES.get(module, module)}.{name}"
        if listed not in self._allow:
            raise UnsafeFileError(
                f"{self._label} names {module}.{name}; nothing was run and the file is refused. "
                f"Valid there: {', '.join(sorted(self._allow))}."
            )
        return _Name(listed)

    def load_bytearray8(self) -> None:
        # The original reserves any announced length.
        (length,) = struct.unpack("<Q", self.read(8))
        data = self.read(length)
        if len(data) != length:
            raise EOFError("a byte array ends early")
        self.append(bytearray(data))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        # A name is called, and no class made.
        pickle.NEWOBJ[0]: pickle._Unpickler.dispatch[pickle.REDUCE[0]],
    }

    def get_extension(self, code: int) -> None:
        raise UnsafeFileError(f"{self._label} uses the registered extension {code}; refused.")

    def persistent_load(self, key: Any) -> Any:
        """Return type and length of a tensor's storage, the only valid reference."""
        if self._allow is not _IN_TENSOR or type(key) is not tuple or key[:1] != ("storage",):
            raise UnsafeFileError(f"{self._label} refers to an object outside the file; refused.")
        return key[1], key[4]


def restricted_load(
    path_or_file: Path | io.BufferedIOBase, allow: frozenset[str], format_name: str
) -> Any:
    """Return the data in a pickle of protocol 0 to 5 without running its code.

    Args:
        path_or_file: a path, or a binary file positioned at the pickle.
        allow: the format's allow-list.
        format_name: the format in messages ("MANO .pkl").

    Returns:
        Containers, numbers, strings (Python 2 byte strings as latin1), numpy arrays (also of chumpy
        objects and tensors), and scipy's sparse matrices.

    Raises UnsafeFileError: a name that is not listed, or calls that do not describe data.
    SchemaError: it is truncated or not a pickle. InputError: it is unreadable or too big.
    """
    data, name = _read(path_or_file)
    label = f"{name}: this {format_name}"
    try:
        return _Data()(_Unpickler(io.BytesIO(data), allow, label).load())
    except UnsafeFileError:
        raise
    except (EOFError, pickle.UnpicklingError, struct.error, LookupError, ValueError) as error:
        raise SchemaError(
            f"{label} is truncated or not a pickle ({type(error).__name__}: {error})."
        ) from error
    except Exception as error:  # they call data, change a class, or describe no data
        raise UnsafeFileError(f"{label} is refused: {error}.") from error


def load_npy_object(path: Path, format_name: str = ".npy of objects") -> np.ndarray:
    """Return the object array of a pickled ``.npy`` file. Raises as ``restricted_load``."""
    data, name = _read(path)
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read_header(stream)
    except (ValueError, KeyError) as error:
        raise SchemaError(f"{name}: not a .npy file of version 1 or 2 ({error}).") from error
    if dtype != np.dtype(object):
        raise SchemaError(f"{name}: holds {dtype}, not objects; read it with numpy.load.")
    stream.name = name
    value = restricted_load(stream, NPY_OBJECT, format_name)
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        raise SchemaError(f"{name}: the pickle does not hold the array that its header announces.")
    return value


def _read(path_or_file: Path | io.BufferedIOBase) -> tuple[bytes, str]:
    """Return the bytes, and a name for messages."""
    if not isinstance(path_or_file, Path):
        return path_or_file.read(), str(getattr(path_or_file, "name", "<stream>"))
    try:
        size = path_or_file.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(f"{path_or_file}: {size} bytes; at most {_MAX_BYTES} are read.")
        return path_or_file.read_bytes(), str(path_or_file)
    except OSError as error:
        raise InputError(f"{path_or_file}: cannot be read ({error.strerror}).") from error
