import os
import signal
import sys

import pytest

from gpt1_jax.runs import signals
from gpt1_jax.runs.signals import catch

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
OTHERS = pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
)


def send(number):
    os.kill(os.getpid(), number)


def asked(stop):
    stop.ask(1)
    return stop.requested


@BOTH
def test_a_signal_interrupts_but_is_a_request_while_deferred(number, capfd):
    """A second one quits as the program wishes.

    Not by an exception, which a library in the middle of a save would report.
    """
    ended = []
    with catch(lambda: ended.append(number) or sys.exit()) as stop:
        with stop.deferred():
            assert not asked(stop)
            send(number)
            assert asked(stop)
            assert "stopping after this step" in capfd.readouterr().err
            with pytest.raises(SystemExit):
                send(number)
        assert ended == [number]
        with pytest.raises(KeyboardInterrupt):
            send(number)
    with catch() as stop, pytest.raises(KeyboardInterrupt):
        send(number)
    assert stop.received()


@OTHERS
def test_a_closed_terminal_and_slurm_ask_the_same_however_often(number, capfd):
    """bash and the system each send SIGHUP when a terminal is closed."""
    with catch() as stop:
        with stop.deferred():
            send(number)
            send(number)
            assert asked(stop)
            assert capfd.readouterr().err.count("stopping after this step") == 1
        with pytest.raises(KeyboardInterrupt):
            send(number)


@OTHERS
def test_a_signal_that_is_ignored_stays_so(number):
    """As SIGHUP under nohup."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with catch() as stop, stop.deferred():
            send(number)
            assert not asked(stop)
    finally:
        signal.signal(number, before)


@BOTH
def test_a_request_is_heard_though_standard_error_is_full(number):
    before = os.dup(2)
    with open("/dev/full", "w") as full, catch() as stop, stop.deferred():
        os.dup2(full.fileno(), 2)
        try:
            send(number)
        finally:
            os.dup2(before, 2)
            os.close(before)
        assert asked(stop)


@BOTH
def test_the_first_signal_quits_where_a_library_would_go_on(number):
    with catch(sys.exit) as stop:
        with stop.quitting(), pytest.raises(SystemExit):
            send(number)
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_an_interrupt_that_gets_lost_is_remembered(monkeypatch):
    """As in a callback of the garbage collector, which must not raise."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: lost.append(args.exc_type))

    class Collected:
        def __del__(self):
            send(signal.SIGINT)

    with catch() as stop:
        Collected()
        assert lost == [KeyboardInterrupt]
        with stop.deferred():
            assert asked(stop)


def test_the_outermost_block_catches_for_all_and_puts_handlers_back():
    before = signal.getsignal(signal.SIGINT)
    with catch() as outer:
        with catch() as inner:
            assert inner is outer
        assert signal.getsignal(signal.SIGINT) == outer.receive
    assert signal.getsignal(signal.SIGINT) == before


def test_of_several_processes_ctrl_c_is_passed_on_to_all(monkeypatch):
    """As SIGTERM, with which JAX asks all of them after which step to stop."""
    monkeypatch.setattr(signals, "is_joined", lambda: True)
    passed_on = []
    with catch() as stop:
        # JAX takes SIGTERM over when processes join.
        signal.signal(signal.SIGTERM, lambda *_: passed_on.append("to JAX"))
        with stop.deferred():
            send(signal.SIGINT)
            assert passed_on == ["to JAX"]
            assert not stop.received(), "the others would go on alone"
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)
