"""The heap keeps its memory where it is glibc's and the user has not chosen."""

from __future__ import annotations

import platform
import sys

import pytest

from cutlayer import heap


def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in heap.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    assert heap.keep() == (sys.platform == "linux" and platform.libc_ver()[0] == "glibc")
    for name in heap.CHOSEN:
        with monkeypatch.context() as only:
            only.setenv(name, "1")
            assert not heap.keep()


def test_elsewhere_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not heap.keep()
