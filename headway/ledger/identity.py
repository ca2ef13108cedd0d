"""Whose spool a directory is. Two processes with the same identity would each lease the same slices of a budget.

    lock      held while a gateway runs: one process for each directory
    place     the file system and the inode of the directory: a copy has others, and is refused
    gateway   the name of the gateway, the same in all its runs, and the number of this run; then why 0.1 stops here
    claim     the last claim that the store has confirmed, and those that were made since, the newest first

A copy can have the same place, as in a snapshot of a disk that is attached to another machine. So a gateway claims its
name in the store each time it starts, as the successor of the claims in this directory: any of them may have been
confirmed, if the gateway was killed before it saw the answer. Of several copies the store confirms one; the others, and
a gateway that runs, find a claim that they do not know, and stop.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from headway.errors import SetupError

# Behind the number of a run. Version 0.1 takes a spool whatever is in it, and would not ship lines that this version
# wrote again after a failed sync. It reads a number here and ends with an error that quotes this text.
NOT_FOR_0_1 = (
    " of Headway 0.2 or later. Version 0.1 cannot read all of this spool: set spool to an empty directory, and let the "
    "later version ship what is here."
)

MOST_TRIED = 100  # starts without an answer of the store that are remembered


class Claim(NamedTuple):
    number: int
    nonce: str


class Identity:
    def __init__(self, directory: Path) -> None:
        """Take the directory, for one run. Raises SetupError if it is in use, or a copy."""
        self._directory = directory
        self.lock = lock_spool(directory)
        try:
            self._check_place()
            self.gateway = self._next_run()
            self.known, self.claim = self._next_claim()
        except SetupError:
            os.close(self.lock)
            raise
        except OSError as error:
            os.close(self.lock)
            raise SetupError(f"cannot use the spool in {directory}: {error}") from error
        except ValueError as error:
            os.close(self.lock)
            raise SetupError(
                f"The files `gateway` and `claim` in {directory} are damaged. Delete both: then what is in the spool "
                "is billed under a new name."
            ) from error

    @property
    def name(self) -> str:
        return self.gateway.partition("/")[0]

    def confirm(self) -> None:
        """Record that the store has confirmed the claim."""
        if self.known != [self.claim]:
            write_file(self._directory / "claim", f"{self.claim.number} {self.claim.nonce}")
            self.known = [self.claim]

    def is_taken(self) -> SetupError:
        """The error to raise if the store does not confirm the claim."""
        return SetupError(
            f"Another gateway has used the spool in {self._directory}, or a copy of it. Set `spool` to an empty "
            f"directory. If the other gateway is gone for good, delete {self._directory}/gateway: then what is here is "
            "billed under a new name."
        )

    def _check_place(self) -> None:
        # Not the number of the device, which can change when a machine starts.
        place = f"{os.statvfs(self._directory).f_fsid}:{self._directory.stat().st_ino}"
        path = self._directory / "place"
        if not path.exists():
            write_file(path, place)
        elif path.read_text().strip() != place:
            raise SetupError(
                f"The spool in {self._directory} was copied or moved here. If it is a copy, set `spool` to an empty "
                f"directory. If it was moved, and no gateway will use it where it was before, delete {path}."
            )

    def _next_run(self) -> str:
        name, run = _read_name(self._directory)
        gateway = f"{name}/{int(run) + 1}"
        write_file(self._directory / "gateway", gateway + NOT_FOR_0_1)
        return gateway

    def _next_claim(self) -> tuple[list[Claim], Claim]:
        """Return the claims that the store may have confirmed last, and the next one, which no copy has."""
        path = self._directory / "claim"
        number, nonce, *tried = path.read_text().split() if path.exists() else ["0", "-"]
        confirmed, claim = Claim(int(number), nonce), Claim(int(number) + 1, secrets.token_hex(8))
        write_file(path, " ".join([number, nonce, claim.nonce, *tried[: MOST_TRIED - 1]]))
        return [confirmed, *[Claim(claim.number, one) for one in tried]], claim


def _read_name(directory: Path) -> list[str]:
    """The name of the gateway and the number of its last run."""
    path = directory / "gateway"
    if not path.exists():
        return [f"gw-{secrets.token_hex(4)}", "0"]
    return path.read_text().partition(" ")[0].split("/")


def shared_name(directory: Path) -> str:
    """The name that all relays share whose spools are in this directory: that of a gateway alone with this spool."""
    name, run = _read_name(directory)
    if not (directory / "gateway").exists():
        write_file(directory / "gateway", f"{name}/{run}{NOT_FOR_0_1}")
    return name


def write_file(path: Path, text: str) -> None:
    """Replace a file at once, readable only by its owner. After a power loss it has the old text or the new one."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def lock_spool(directory: Path) -> int:
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise SetupError(f"another gateway uses the spool in {directory}: give each gateway its own `spool`.") from None
    return fd
