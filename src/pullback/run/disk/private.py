"""Folders that code is loaded from: nobody else may write to them.

Whoever can write into such a folder, or can put another one in its place, decides what this process
runs. So a folder is asked for its owner and its mode before anything in it is trusted, and so are
the folders that it lies in.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Of a folder above that belongs to the root of the machine, seen from within a container.
_NOBODY = 65534


class OpenFolderError(PermissionError):
    """Somebody else can write to a folder that code would be loaded from."""


def require_private(path: Path) -> None:
    """Raise `OpenFolderError` where anybody but this user and root can change what is in `path`."""
    why = intrusion_of(path)
    if why:
        raise OpenFolderError(why)


def intrusion_of(path: Path) -> str:
    """How somebody else could change what is in a folder, in words; empty where nobody can.

    A folder above is held against it as well, if others may move away what is in that: not one
    that is sticky, such as the temp folder.
    """
    if not hasattr(os, "getuid"):  # Windows, where a user's folders are closed by other means
        return ""
    for folder in (path, *path.parents):
        try:
            facts = folder.stat()
        except FileNotFoundError:
            continue  # it is yet to be made, by us
        is_leaf = folder == path
        if facts.st_uid != os.getuid() and (is_leaf or facts.st_uid not in (0, _NOBODY)):
            return f"`{folder}` belongs to another user (number {facts.st_uid})"
        why = _writers(folder, facts)
        if why and (is_leaf or not facts.st_mode & stat.S_ISVTX):
            return why
    return ""


def is_own(path: Path) -> bool:
    """Whether a file or folder belongs to this user, and others may not write to it.

    A file that a group may write to is in a folder that the group cannot enter.
    """
    if not hasattr(os, "getuid"):
        return True
    facts = path.stat()
    foreign = stat.S_IWOTH | (stat.S_IWGRP if stat.S_ISDIR(facts.st_mode) else 0)
    return facts.st_uid == os.getuid() and not facts.st_mode & foreign


def _writers(folder: Path, facts: os.stat_result) -> str:
    mode = stat.S_IMODE(facts.st_mode)
    if mode & stat.S_IWOTH:
        return f"everybody may write to `{folder}` (mode {mode:04o})"
    if mode & stat.S_IWGRP and not _is_alone_in(facts.st_gid):
        return f"the group {facts.st_gid} may write to `{folder}` (mode {mode:04o})"
    return ""


def _is_alone_in(group: int) -> bool:
    """Whether a group has no member but this user: many systems make one for each user."""
    import grp  # not on Windows
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    is_named_alike = group == user.pw_gid and found.gr_name == user.pw_name
    return is_named_alike and set(found.gr_mem) <= {user.pw_name}
