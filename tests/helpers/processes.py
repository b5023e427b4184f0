"""Child processes of tests. They are limited by the processor time that they use, because a busy machine
makes every process slow. Ctrl-C stops them even where the tests run in the background and it is ignored."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CPU_SECONDS = 120  # many times what any child needs
GUARD = 3600.0  # seconds of wall clock after which a child that does nothing at all is given up

LIMITED = f"""
import os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def start(*command: object, **options: Any) -> "subprocess.Popen[str]":
    """Start a program in a process of its own."""
    words = [sys.executable, "-IS", "-c", LIMITED, *(str(word) for word in command)]
    return subprocess.Popen(words, text=True, **options)


def start_python(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """Start this Python in a process of its own."""
    return start(sys.executable, *arguments, **options)


def run_program(*command: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end and return what it printed."""
    child = start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        out, err = child.communicate(timeout=GUARD)
    finally:
        child.kill()
        child.wait()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def run_python(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run this Python to its end and return what it printed."""
    return run_program(sys.executable, *arguments, **options)


def wait_until(condition: Callable[[], Any], child: "subprocess.Popen[str] | None" = None) -> Any:
    """Wait until a condition holds and return its value. The wait fails when the child ends before."""
    end = time.monotonic() + GUARD
    while not (value := condition()):
        assert child is None or child.poll() is None, "the process has ended"
        assert time.monotonic() < end
        time.sleep(0.01)
    return value
