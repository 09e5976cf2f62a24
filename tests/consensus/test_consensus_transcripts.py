"""Consensus as transcripts: the servers' messages, and their effects.

Each ``tests/testdata/consensus-*.txt`` has blocks of one input line and, indented, all that comes
of it: frames as they are sent, changes of role, commands as they are applied, and outcomes of
proposals. With ``GPUPOOL_REWRITE=1`` in the environment, what happens now is written into the
files; commit that only if you understand what has changed.

    add 3 [snapshot_entries=9]   begin: so many voters, "1" on, connected; any setting of consensus
    join 4                       a server without a vote comes
    campaign 1                   server 1 hears nothing until its election timeout
    propose 1 x [ttl=2s]         a command is proposed at server 1
    deliver                      frames arrive, and those that they cause, until none is left
    deliver once                 only those arrive that are on their way now
    deliver 1 2                  only those from server 1 to server 2
    drop 1 2                     those from server 1 to server 2 are lost; drop: all
    partition 1 | 2 3            connections between the groups break
    heal                         they come back
    crash 2, restart 2           server 2 loses its power; it starts from its disk
    tick 50ms [2 3]              time passes, at these servers only, and no frame arrives
    run 2s                       time passes for all; frames arrive within 10 ms (only roles and
                                 applied commands are shown)
    voters 1 2 4                 the pool's wish, at every server
    status                       every server, with its log as index/term:content
"""

import os
import re
from pathlib import Path

import pytest
from transcript_cluster import JUST_AFTER_S, Cluster

from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.pool.model.ids import ServerId

FILES = sorted((Path(__file__).parents[1] / "testdata").glob("consensus-*.txt"))
RUN_STEP_S = 0.01


def seconds(word: str) -> float:
    """Return a duration such as 50ms or 2s."""
    if word.endswith("ms"):
        return float(word.removesuffix("ms")) / 1000
    return float(word.removesuffix("s"))


class Script:
    """Carries out one transcript."""

    cluster: Cluster

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        if verb == "add":
            self.add(words)
        else:
            self.step(verb, words)
        notes = list(self.cluster.notes)
        self.cluster.notes.clear()
        if verb == "run":
            notes = [note for note in notes if " -> " not in note]
        return notes or ["nothing"]

    def add(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words[1:])
        settings = ConsensusSettings(**{name: int(value) for name, value in options.items()})
        self.cluster = Cluster(settings)
        names = [ServerId(str(number)) for number in range(1, int(words[0]) + 1)]
        self.cluster.add(names, names)

    def step(self, verb: str, words: list[str]) -> None:
        cluster = self.cluster
        match verb:
            case "join":
                cluster.add([ServerId(word) for word in words], [])
            case "campaign":
                self.campaign(ServerId(words[0]))
            case "propose":
                ttl_s = seconds(words[2].removeprefix("ttl=")) if words[2:] else 60.0
                cluster.propose(ServerId(words[0]), words[1], ttl_s)
            case "deliver" if words == ["once"]:
                cluster.deliver(once=True)
            case "deliver":
                cluster.deliver(*words, once=bool(words))
            case "drop":
                lost = [f for f in cluster.in_flight if not words or list(f[:2]) == words]
                cluster.in_flight = [f for f in cluster.in_flight if f not in lost]
                cluster.notes.append(f"{len(lost)} frames are lost")
            case "partition":
                groups = " ".join(words).split("|")
                cluster.part([{ServerId(name) for name in group.split()} for group in groups])
            case "heal":
                cluster.heal()
            case "crash":
                cluster.crash(ServerId(words[0]))
            case "restart":
                cluster.boot(ServerId(words[0]))
            case "tick":
                for name in words[1:] or sorted(cluster.servers):
                    cluster.advance(cluster.servers[ServerId(name)], seconds(words[0]))
            case "run":
                for _ in range(round(seconds(words[0]) / RUN_STEP_S)):
                    for server in cluster.servers.values():
                        cluster.advance(server, RUN_STEP_S)
                    cluster.deliver()
            case "voters":
                for server in cluster.servers.values():
                    if server.node is not None:
                        server.node.reconcile_voters([ServerId(word) for word in words])
                        cluster.step(server)
            case "status":
                cluster.notes += cluster.status()
            case _:
                raise AssertionError(f"no such verb: {verb}")

    def campaign(self, name: ServerId) -> None:
        server = self.cluster.servers[name]
        assert server.node is not None, f"{name} is down"
        due = server.node.core.next_step_at()
        server.now = max(server.now, due) + JUST_AFTER_S
        self.cluster.step(server)


def replay(text: str) -> str:
    script = Script()
    blocks: list[str] = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        notes = [line for line in lines if line.startswith("#")]
        inputs = [line for line in lines if line and not line.startswith(("#", " "))]
        found: list[str] = []
        for line in inputs:
            found += [line, *(f"    {each}" for each in script.run(line))]
        blocks.append("\n".join([*notes, *found]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    found = replay(expected)
    if os.environ.get("GPUPOOL_REWRITE"):
        path.write_text(found, encoding="utf-8")
    else:
        assert found == expected


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 8


def test_every_verb_is_used() -> None:
    """A verb that no transcript uses is not tested."""
    assert __doc__ is not None
    verbs = set(re.findall(r"^    (?:crash 2, )?([a-z]+) ", __doc__, re.MULTILINE)) | {"crash"}
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in FILES)
    used = set(re.findall(r"^([a-z]+)\b", text, re.MULTILINE))
    assert used == verbs
