"""Inert stand-ins for what a data pickle names, and the arrays made from them afterwards.

A pickle may call, build and change whatever its loader hands out. So it is handed only these
classes: they record what they are given and run nothing. numpy's own reconstructors are not among
them, because a dtype whose stored flags lie makes numpy read pointers out of the file. Arrays are
built here from a checked type, shape and bytes once the whole file has been read.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import numpy as np

_MAX_DEPTH = 100
_PLAIN = (bool, int, float, str, bytes, type(None))
#: Booleans, integers, floats, complex numbers, byte and unicode strings, objects.
_DTYPE = re.compile(r"(b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,5}|O[48]?)")


class StandInError(Exception):
    """Recorded calls that do not describe data."""


class _Sealed(type):
    """A class that a pickle may call but not change."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise StandInError(f"it sets the attribute {name!r} of {cls.__name__}")


class StandIn(metaclass=_Sealed):
    """Records the arguments it is made with and the state it is given."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Any:
        self = object.__new__(cls)
        self.args, self.state = args, None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def field(self, name: str) -> Any:
        """Return one attribute of the stored state."""
        if not isinstance(self.state, dict) or name not in self.state:
            raise StandInError(f"{type(self).__name__} lacks its {name!r}")
        return self.state[name]

    def value(self, resolve: Resolver) -> Any:
        """Return the plain data that this object stands for."""
        raise StandInError(f"a bare {type(self).__name__} is not data")


class PyObject(StandIn):
    """``object``, named as the base class by protocols 0 and 1."""


class Reconstructor(StandIn):
    """``copyreg._reconstructor``: makes an empty instance of a stand-in."""

    def __new__(cls, target: Any, base: Any, state: Any) -> Any:
        if not (isinstance(target, _Sealed) and base is PyObject and state is None):
            raise StandInError("it reconstructs something that is not a listed class")
        return target()


class EmptyBytes(StandIn):
    """``bytes()``: how old protocols write the empty byte string."""

    def __new__(cls) -> Any:
        return b""


class Encode(StandIn):
    """``_codecs.encode``: how old protocols write bytes."""

    def __new__(cls, text: Any, encoding: Any = "latin1") -> Any:
        if type(text) is not str or encoding not in ("latin1", "latin-1"):
            raise StandInError("it encodes something that is not a byte string")
        return text.encode("latin1")


class PlainDict(StandIn):
    """``collections.OrderedDict``: a dict."""

    def __new__(cls, pairs: Any = ()) -> Any:
        return dict(pairs)


class PlainSet(StandIn):
    """``set``."""

    def __new__(cls, items: Any = ()) -> Any:
        return set(items)


class PlainFrozenSet(StandIn):
    """``frozenset``."""

    def __new__(cls, items: Any = ()) -> Any:
        return frozenset(items)


class Dtype(StandIn):
    """``numpy.dtype``: made with a code, its byte order in the state."""

    def dtype(self) -> np.dtype:
        """Return the real type; structured and dated types are not needed and refused."""
        code = self.args[0] if self.args else None
        if type(code) is not str or not _DTYPE.fullmatch(code):
            raise StandInError(f"the array type {code!r} is not a plain one")
        order: Literal["<", ">", "=", "|"] = "="
        if isinstance(self.state, tuple) and len(self.state) > 1:
            order = self.state[1]
        if order not in ("<", ">", "=", "|"):
            raise StandInError(f"{order!r} is not a byte order")
        return np.dtype(code if code[0] != "O" else "O").newbyteorder(order)

    def value(self, resolve: Resolver) -> Any:
        return self.dtype()


class Ndarray(StandIn):
    """``numpy.ndarray``: shape, type, order and bytes come with the state."""

    def value(self, resolve: Resolver) -> Any:
        if not isinstance(self.state, tuple) or len(self.state) not in (4, 5):
            raise StandInError("an array lacks its state")
        shape, dtype, fortran, raw = self.state[-4:]
        return resolve.array(raw, dtype, shape, "F" if fortran else "C")


class ArrayReconstruct(StandIn):
    """``numpy.core.multiarray._reconstruct``: makes an empty array."""

    def __new__(cls, subtype: Any, shape: Any, code: Any) -> Any:
        if subtype is not Ndarray:
            raise StandInError("it reconstructs an array of a class that is not numpy.ndarray")
        return Ndarray()


class ArrayFromBuffer(StandIn):
    """``numpy.core.numeric._frombuffer``: protocol 5's array."""

    def value(self, resolve: Resolver) -> Any:
        if len(self.args) != 4 or self.args[3] not in ("C", "F"):
            raise StandInError("an array buffer is not described")
        return resolve.array(*self.args)


class ArrayScalar(StandIn):
    """``numpy.core.multiarray.scalar``: one number."""

    def value(self, resolve: Resolver) -> Any:
        if len(self.args) != 2:
            raise StandInError("a scalar needs a type and bytes")
        return resolve.array(self.args[1], self.args[0], (), "C")[()]


class SparseColumns(StandIn):
    """scipy's compressed sparse columns: returned as a real matrix, its indices checked."""

    by_column = True

    def value(self, resolve: Resolver) -> Any:
        from scipy import sparse

        data, indices, indptr = (
            np.asarray(resolve(self.field(name))) for name in ("data", "indices", "indptr")
        )
        shape = resolve(self.field("_shape"))
        make = sparse.csc_matrix if self.by_column else sparse.csr_matrix
        try:
            matrix = make((data, indices, indptr), shape=shape)
            matrix.check_format(full_check=True)
        except (ValueError, TypeError, IndexError) as error:
            raise StandInError(f"a sparse matrix is damaged ({error})") from error
        return matrix


class SparseRows(SparseColumns):
    """scipy's compressed sparse rows."""

    by_column = False


class Chumpy(StandIn):
    """``chumpy.ch.Ch``: a constant; its array is ``x``."""

    def value(self, resolve: Resolver) -> Any:
        return np.asarray(resolve(self.field("x")))


class ChumpySelect(StandIn):
    """``chumpy.reordering.Select``: chosen entries of a flattened array, reshaped."""

    def value(self, resolve: Resolver) -> Any:
        source = np.asarray(resolve(self.field("a")))
        indices = np.asarray(resolve(self.field("idxs")))
        shape = resolve(self.state.get("preferred_shape", indices.shape))
        try:
            return source.ravel()[indices].reshape(shape)
        except (IndexError, ValueError, TypeError) as error:
            raise StandInError(f"a selection does not fit its array ({error})") from error


class Resolver:
    """Replaces stand-ins by plain data, each object once."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._keep: list[Any] = []  # an id is only unique while its object lives
        self._depth = 0

    def __call__(self, item: Any) -> Any:
        """Return ``item`` with every stand-in inside it replaced.

        Raises:
            StandInError: for recorded calls that do not describe data, for loops and for nesting
                deeper than any dataset needs.
        """
        if type(item) in _PLAIN:
            return item
        if id(item) in self._done:
            return self._done[id(item)]
        if self._depth >= _MAX_DEPTH:
            raise StandInError(f"it nests deeper than {_MAX_DEPTH} levels, or in a loop")
        self._depth += 1
        value = self._replace(item)
        self._depth -= 1
        self._keep.append(item)
        self._done[id(item)] = value
        return value

    def _replace(self, item: Any) -> Any:
        if type(item) in (list, tuple, set, frozenset):
            return type(item)([self(entry) for entry in item])
        if type(item) is dict:
            return {self(key): self(entry) for key, entry in item.items()}
        if type(item) is bytearray:
            return bytes(item)
        if isinstance(item, StandIn):
            return item.value(self)
        raise StandInError(f"a {getattr(item, '__name__', type(item).__name__)} is not data")

    def array(self, raw: Any, dtype: Any, shape: Any, order: Literal["C", "F"]) -> np.ndarray:
        """Return a writable array of exactly the bytes, or the objects, that ``raw`` holds."""
        if not isinstance(dtype, Dtype):
            raise StandInError("an array lacks its type")
        real = dtype.dtype()
        if type(shape) is int:
            shape = (shape,)
        if type(shape) is not tuple or any(type(n) is not int or n < 0 for n in shape):
            raise StandInError(f"{shape!r} is not an array shape")

        count = math.prod(shape)
        if real.hasobject:
            if type(raw) is not list or len(raw) != count:
                raise StandInError(f"an array of {count} objects lacks its list")
            flat = np.empty(count, object)
            for index, entry in enumerate(raw):
                flat[index] = self(entry)
        else:
            data = raw.encode("latin1") if type(raw) is str else raw
            if type(data) not in (bytes, bytearray):
                raise StandInError("an array lacks its bytes")
            if len(data) != count * real.itemsize:
                raise StandInError(
                    f"an array of shape {shape} and type {real} needs {count * real.itemsize} "
                    f"bytes, not {len(data)}"
                )
            flat = np.frombuffer(data, real).copy()

        return flat.reshape(shape, order=order)
