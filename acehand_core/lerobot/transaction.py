"""Groups of files, and whole datasets, that appear together or not at all.

A group (``Transaction``) is staged in a hidden folder inside the dataset, described by a journal,
then renamed file by file. A process killed before the journal is complete has changed nothing;
after it, ``recover`` finishes the group. A failure while renaming is undone.

A whole dataset is built in a hidden sibling (``claim``), by one process at a time, and renamed
(``publish``); ``clean_siblings`` tidies up after a killed process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from acehand_core.atomic import DirectoryLock, abandoned, rename_folder, sync, write_synced
from acehand_core.errors import SchemaError, UnsafeFileError

STAGING = ".acehand-append"
_JOURNAL = "journal.json"
_UNDO = "journal-undo.json"


def step(name: str) -> None:
    """Announce the next write to disk; tests replace it to fail or kill there."""


@dataclass(frozen=True, slots=True)
class _Move:
    staged: str
    target: str
    replaces: bool


class Transaction:
    """Files staged in ``root/.acehand-append``, placed together and in order.

    The last one makes the others count: ``recover`` finishes a group only while it is unchanged.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / STAGING
        self._moves: list[_Move] = []

    def stage(self, name: str) -> Path:
        """Return the path of a file to be written before ``commit``."""
        self.folder.mkdir(exist_ok=True)
        return self.folder / name

    def add(self, staged: str, target: str) -> None:
        """Plan that the staged file becomes ``target`` (relative to the root, with slashes)."""
        self._moves.append(_Move(staged, target, (self.root / target).exists()))

    def commit(self) -> None:
        """Put every added file in place. Raises OSError after undoing it."""
        for move in self._moves:
            sync(self.folder / move.staged)
        for number, move in enumerate(self._moves):
            if move.replaces:
                path = self.root / move.target
                copy = self.folder / f"before-{number}"
                copy.unlink(missing_ok=True)
                try:
                    copy.hardlink_to(path)
                except OSError:  # a file system without hard links
                    shutil.copy2(path, copy)

        step("journal")
        journal = {
            "moves": [asdict(move) for move in self._moves],
            "guard_sha256": _digest(self.root / self._moves[-1].target),
        }
        write_synced(self.folder / f"{_JOURNAL}.new", json.dumps(journal).encode())
        (self.folder / f"{_JOURNAL}.new").replace(self.folder / _JOURNAL)
        sync(self.folder)

        try:
            for move in self._moves:
                step(f"place {move.target}")
                _place(self.root, move)
        except BaseException:
            (self.folder / _JOURNAL).rename(self.folder / _UNDO)
            _undo(self.root, self._moves)
            raise

        with contextlib.suppress(OSError):  # everything is in place
            step("clean")
            self.clear()
        self._moves.clear()

    @property
    def is_stuck(self) -> bool:
        """Whether undoing failed: then only ``recover`` may continue."""
        return (self.folder / _UNDO).exists()

    def clear(self) -> None:
        """Forget what was staged and planned. Raises OSError."""
        self._moves.clear()
        if not self.is_stuck:
            _remove_staging(self.folder)


def recover(root: Path) -> str | None:
    """Finish or drop an interrupted ``Transaction``; return which, in words. Safe to repeat.

    Raises UnsafeFileError for a journal that names a file outside ``root``, OSError.
    """
    folder = root / STAGING
    if not folder.is_dir():
        return None
    outcome = f"{root}: removed an unfinished addition"

    for name in (_UNDO, _JOURNAL):
        if not (folder / name).is_file():
            continue
        moves, guard_sha256 = _read_journal(root, folder / name)
        guard = moves[-1]
        if name == _UNDO:
            _undo(root, moves)
            outcome = f"{root}: undid an addition that had failed"
        elif not (folder / guard.staged).exists():
            outcome = f"{root}: cleaned up after a completed addition"
        elif _digest(root / guard.target) == guard_sha256:
            for move in moves:
                if (folder / move.staged).exists():
                    _place(root, move)
            outcome = f"{root}: finished an interrupted addition"
        else:
            outcome = f"{root}: dropped an old addition; {guard.target} has changed since"
        break

    _remove_staging(folder)
    return outcome


def claim(root: Path) -> tuple[Path, DirectoryLock]:
    """Tidy up; make and lock the hidden sibling in which a dataset for ``root`` is built.

    Raises LockedError while another process has it. Without file locks each process has its own,
    and ``publish`` refuses the second.
    """
    clean_siblings(root)
    base = root.with_name(f".{root.name}.partial-new")
    base.mkdir(exist_ok=True)
    lock = DirectoryLock(base, named=root)
    if not lock.held:
        base = base.rename(base.with_suffix(f".partial-{os.getpid()}"))
    return base, lock


def publish(base: Path, root: Path, replaces: bool) -> None:
    """Rename a finished folder to ``root`` (``rename_folder``)."""
    rename_folder(base, root, replaces, lambda name: step(f"publish: {name}"))


@contextlib.contextmanager
def built_sibling(root: Path, replaces: bool) -> Iterator[Path]:
    """Yield a hidden sibling that ``publish`` renames; removed on failure. Raises OSError."""
    step("begin")
    base, lock = claim(root)
    with lock:
        try:
            yield base
            for path in base.rglob("*"):
                sync(path)
            publish(base, root, replaces)
        except BaseException:
            shutil.rmtree(base, ignore_errors=True)
            raise


def clean_siblings(root: Path) -> list[str]:
    """Remove or restore what killed writers left next to ``root``; return it in words."""
    done = []
    for kind in ("partial", "replaced"):
        for path in abandoned(root, kind):
            if kind == "replaced" and not root.exists():
                path.rename(root)
                done.append(f"{root}: restored from {path.name}")
            else:
                shutil.rmtree(path)
                done.append(f"removed {path}")
    return done


def _place(root: Path, move: _Move) -> None:
    target = root / move.target
    target.parent.mkdir(parents=True, exist_ok=True)
    if not move.replaces and target.exists():
        raise FileExistsError(f"{target} exists already; run the repair command first")
    (root / STAGING / move.staged).replace(target)
    sync(target.parent)


def _undo(root: Path, moves: list[_Move]) -> None:
    folder = root / STAGING
    for number, move in reversed(list(enumerate(moves))):
        placed = not (folder / move.staged).exists()
        before = folder / f"before-{number}"
        if placed and before.exists():
            before.replace(root / move.target)
        elif placed and not move.replaces:
            (root / move.target).unlink(missing_ok=True)
        _prune((root / move.target).parent, root)
    _remove_staging(folder)


def _prune(folder: Path, root: Path) -> None:
    while folder != root:
        if folder.is_dir():
            if any(folder.iterdir()):
                return
            folder.rmdir()
        folder = folder.parent


def _remove_staging(folder: Path) -> None:
    # The journal first: without it the rest has no effect.
    (folder / _JOURNAL).unlink(missing_ok=True)
    if folder.is_dir():
        shutil.rmtree(folder)


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _read_journal(root: Path, path: Path) -> tuple[list[_Move], str | None]:
    try:
        journal = json.loads(path.read_text())
        moves = [_Move(**move) for move in journal["moves"]]
        guard_sha256 = journal["guard_sha256"]
        names = [name for move in moves for name in (move.staged, move.target)]
        inside = [_is_inside(path.parent, m.staged) and _is_inside(root, m.target) for m in moves]
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(
            f"{path} is not a journal of acehand ({error!r}); remove that folder."
        ) from error
    if not moves or not all(inside):
        raise UnsafeFileError(
            f"{path} names files outside the dataset ({names}); remove that folder by hand."
        )
    return moves, guard_sha256


def _is_inside(folder: Path, name: str) -> bool:
    path = (folder / name).resolve()
    return path != folder.resolve() and path.is_relative_to(folder.resolve())
