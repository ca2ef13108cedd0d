"""The simulator compiled and as Python runs it: the same decisions at the same times, to the last digit.

The messages between processes and the record of events are made from core's types, so they are tested here too, and the
dispatcher with its links, which is compiled as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RUN = """
import asyncio, hashlib, pickle, sys, tempfile
from pathlib import Path
import headway.core.machine
from headway.core.curve import Curve
from headway.core.rate_limit import RateLimit, TokenLimit
from headway.core.types import Arrived, Board, Call, Finished, ModelPolicy, Replica, ReplicaUp, TierPolicy, own_pools
from headway.dispatch.codec import decode_from_dispatcher, decode_from_relay, encode
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.fleet import Member
from headway.dispatch.frames import PROTOCOL, Actions, Beat, Counted, Events, Hello, Reported
from headway.dispatch.link import Link
from headway.dispatch.record import EventLog, replay
from headway.sim.dispatched import DispatchedSimulation
from headway.sim.dispatcher import DispatcherFault, DispatcherTimes
from headway.sim.loop import Fault, Simulation
from headway.sim.workload import Recipe, synthesize

tiers = {"fast": TierPolicy(100, 5.0, floor_tps=25.0), "standard": TierPolicy(1_000, 60.0), "flex": TierPolicy(9, 600.0)}
recipe = Recipe(30.0, tiers={"standard": 0.7, "fast": 0.2, "flex": 0.1})
fleet = [Replica(f"r{n}", "m", 8, Curve(0.01, 0.01, 0.0, 2e-6 * (n % 2)), 10_000.0) for n in range(6)]
assert pickle.loads(pickle.dumps((recipe, fleet, tiers))) == (recipe, fleet, tiers)  # seeds are played in processes
simulation = Simulation({"m": ModelPolicy(tiers)}, fleet, 0.01, (Fault(30.0, "r1", 20.0),))
lines = [f"{t.job.call.id} {t.tier} {t.how} {t.first_at!r} {t.ended_at!r}" for t in simulation.run(synthesize(recipe, 1), 300)]
dispatched = DispatchedSimulation(
    {"m": ModelPolicy(tiers)}, fleet, DispatcherTimes(), (0.6, 0.4), 1, 0.01, (Fault(30.0, "r1", 20.0),),
    (DispatcherFault(60.0, 1.5), DispatcherFault(90.0, 1.5, 1)),
)
lines += [f"{t.job.call.id} {t.tier} {t.how} {t.first_at!r} {t.ended_at!r}" for t in dispatched.run(synthesize(recipe, 1), 120)]
limit = TokenLimit(1, 2, 3)
events = Events([Arrived(Call("a", "m", "fast", express_limit=limit)), ReplicaUp(fleet[0])])
actions = Actions([Board("a", "r0", "fast", 25.0, None, RateLimit(limit, 1, 2, 3, 0.5, 0.5)), Board("b", "r0", "flex")])
assert decode_from_relay(encode(events)) == events
assert decode_from_dispatcher(encode(actions)) == actions
with tempfile.TemporaryDirectory() as folder:
    path, policies = Path(folder) / "record", own_pools({"m": ModelPolicy(tiers)})
    machine, record = headway.core.machine.Machine(*policies), EventLog(path, *policies)
    for event in (ReplicaUp(fleet[0]), events.events[0], Finished("a", 1, 2)):
        record.append(0.0, event, machine.step(event, 0.0))
    record.close()
    assert replay(path).first_difference is None
class Wire:
    def __init__(self):
        self.written, self.is_open = [], True
        self.write = self.written.append

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return not self.is_open

    def abort(self):
        self.is_open = False


async def dispatched_calls():
    members = [Member(one, "vllm") for one in fleet]
    dispatcher = Dispatcher(headway.core.machine.Machine(*policies), members, 1, "", ["relay"], clock=lambda: 0.0)
    link, wire = Link("relay", decode_from_relay, dispatcher.make_session), Wire()
    link.connection_made(wire)
    said = [Hello(PROTOCOL, "relay", "run"), Reported(), Events([ReplicaUp(one) for one in fleet]), Beat(1, 0)]
    said += [Counted(one.name, 0) for one in fleet]
    said += [Events([Arrived(Call(f"{n}", "m", "standard"))]) for n in range(9)]
    said += [Events([Finished(f"{n}", 1, 2, 30.0) for n in range(9)])]
    data = b"".join(len(one).to_bytes(4, "big") + one for one in map(encode, said))
    for at in range(0, len(data), 100):
        link.data_received(data[at : at + 100])
    link.data_received(b"\\x00\\x00\\x00\\x04" + b"\\x92\\x01\\x91\\xc0")  # a row that is none
    assert not wire.is_open
    return b"".join(wire.written).hex()


answers = asyncio.run(dispatched_calls())
digest = hashlib.sha256("\\n".join(lines).encode()).hexdigest()
print(headway.core.machine.__file__.endswith(".so"), len(lines), digest, PROTOCOL, encode(events).hex(), answers)
"""


def run(path: str) -> list[str]:
    env = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}  # replicas are dealt in the order of a set
    return subprocess.run(
        [sys.executable, "-c", RUN], env=env, cwd=ROOT.parent, capture_output=True, check=True, text=True
    ).stdout.split()


@pytest.mark.timeout(300)
def test_compiled_it_does_the_same() -> None:
    build = f'set -e; cd "{ROOT}"; PY="{sys.executable}"; source runs/compiled.bash; echo "$PYTHONPATH"'
    built = subprocess.run(["bash", "-c", build], capture_output=True, check=True, text=True).stdout.strip()
    compiled, plain = run(built), run(str(ROOT))
    assert (compiled[0], plain[0]) == ("True", "False")
    assert int(plain[1]) > 5_000
    assert compiled[1:] == plain[1:]
