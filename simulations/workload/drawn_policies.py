"""Policies as an operator might write them, with all that can matter within half a minute."""

from datetime import UTC, datetime
from random import Random

from gpupool.simulations.kernel.machines import RACKS
from gpupool.simulations.kernel.swarm_options import Options

USERS = ("user1", "user2", "user3")
CLASSES = ("lab", "course")

Tables = dict[str, dict[str, str]]
"""Keys and values, as they are written, by table."""


def draw_bulk(random: Random, kib: int) -> str:
    """Return comments that deflate to about so many KiB: half of their size in hex."""
    return "".join(f"# {random.randbytes(512).hex()}\n" for _ in range(2 * kib))


def draw_policy(random: Random, options: Options, now_ms: int) -> str:
    """Return a policy's document.

    Args:
        random: a random source.
        options: of the run; the kinds of rules; each policy has some of them.
        now_ms: the table's time, so that windows open and close soon.
    """
    kinds = [kind for kind in options.policy if random.random() < 0.7]
    members = _draw_members(random)
    tables: Tables = {f"class.{name}": {"users": _words(users)} for name, users in members.items()}
    for kind in kinds:
        if kind in ("gpus", "memory", "leases"):
            _draw_limits(random, options, kind, tables, "")
        elif kind == "priority":
            for name in CLASSES:
                _put(tables, f"class.{name}", "priority", str(random.choice((-1, 0, 1, 5))))
        elif kind == "places":
            _draw_places(random, options, tables)
        elif kind == "idle":
            _put(tables, _anybody(random), "idle_timeout", f'"{random.choice((2, 3, 5))}s"')
        elif kind == "lifetime":
            _put(tables, _anybody(random), "max_lease_time", f'"{random.choice((2, 4, 8))}s"')
        elif kind == "preempt":
            _draw_preemption(random, kinds, tables)
    lines = _written(tables)
    for kind in kinds:
        if kind == "window":
            lines += _draw_window(random, options, now_ms)
        elif kind == "reservation":
            lines += _draw_reservation(random, options, now_ms)
        elif kind == "preempt" and random.random() < 0.5:
            lines += _draw_window(random, options, now_ms, suspends=True)
    return "\n".join(lines) + "\n"


def _draw_members(random: Random) -> dict[str, list[str]]:
    """Return the members of each class: everybody in one, some by a glob, or nobody."""
    members: dict[str, list[str]] = {name: [] for name in CLASSES}
    if random.random() < 0.3:
        members[CLASSES[0]].append(random.choice(USERS))
        members[CLASSES[1]].append("user*")
        return members
    for user in USERS:
        name = random.choice((*CLASSES, ""))
        if name:
            members[name].append(user)
    return members


def _draw_limits(random: Random, options: Options, kind: str, tables: Tables, above: str) -> None:
    """Limit somebody; ``above`` is the table that these tables belong to."""
    key = f"max_{kind}"
    total = options.servers * options.gpus
    few = {"gpus": ("0.75", "1", "1.5", "2.5"), "memory": ('"8GiB"', '"20GiB"', '"40GiB"')}
    many = {"gpus": (total / 4, total / 2), "memory": (total * 4, total * 8)}
    for who in random.sample(
        ("defaults", "class", "member", "pool", "user"), random.choice((1, 2))
    ):
        name = random.choice(CLASSES)
        small = random.choice(few.get(kind, ("1", "2", "3")))
        large = str(random.choice((4, 8, 12)))
        if kind in many:
            number = max(1.0, random.choice(many[kind]))
            large = f'"{int(number)}GiB"' if kind == "memory" else f"{number:g}"
        if who == "defaults":
            _put(tables, f"{above}defaults", key, small)
        elif who == "member":
            _put(
                tables, f"{above}class.{name}", f"{key}_per_user", random.choice((small, '"none"'))
            )
        elif who == "user":
            user = random.choice(USERS)
            _put(tables, f"{above}user.{user}", key, random.choice((small, '"none"')))
        else:
            where = "pool" if who == "pool" else f"class.{name}"
            _put(tables, f"{above}{where}", key, large)


def _draw_places(random: Random, options: Options, tables: Tables) -> None:
    """Let a class use some GPUs only."""
    table = f"class.{random.choice(CLASSES)}"
    if random.random() < 0.5:
        _put(tables, table, "gpus", _words([f"*-{random.choice(options.gpu_gib)}"]))
    else:
        names = [f"name=s{1 + random.randrange(options.servers)}-*" for _ in range(2)]
        labels = [f"rack={random.choice(RACKS)}"]
        _put(tables, table, "servers", _words(random.choice((names, labels))))


def _draw_preemption(random: Random, kinds: list[str], tables: Tables) -> None:
    """Let three classes have priorities, and some of them give way to others."""
    places = ["defaults", *(f"class.{name}" for name in CLASSES)]
    for place, priority in zip(places, random.sample((0, 3, 7), 3), strict=True):
        _put(tables, place, "priority", str(priority))
        if random.random() < 0.7:
            _put(tables, place, "preemptible", "true")
        if random.random() < 0.7:
            _put(tables, place, "min_run_time", f'"{random.choice((0, 1, 3, 6))}s"')
        if random.random() < 0.3:
            _put(tables, place, "max_suspended", f'"{random.choice((2, 4, 8))}s"')
    # Limits below a guarantee would contradict it.
    if random.random() < 0.5 and not {"gpus", "window"} & set(kinds):
        _put(tables, f"class.{random.choice(CLASSES)}", "guarantee", random.choice(("0.5", "1.5")))


def _draw_window(
    random: Random, options: Options, now_ms: int, *, suspends: bool = False
) -> list[str]:
    """Change limits for some seconds, soon."""
    start_s = now_ms // 1000 + random.randint(-3, 8)
    end_s = start_s + random.randint(3, 12)
    lines = ["[[window]]", f'name = "w{start_s % 100}"']
    lines += [f'from = "{_time(start_s)}"', f'to = "{_time(end_s)}"']
    if suspends:
        lines += ['leases = "suspend"']
    elif random.random() < 0.5:
        lines += ['leases = "end"', f'grace = "{random.choice((0, 1, 3))}s"']
    tables: Tables = {}
    kind = random.choice(("memory", "leases") if suspends else ("gpus", "leases"))
    _draw_limits(random, options, kind, tables, "window.")
    return lines + _written(tables)


def _draw_reservation(random: Random, options: Options, now_ms: int) -> list[str]:
    """Keep some GPUs for a class, up to all, for some seconds, soon."""
    start_s = now_ms // 1000 + random.randint(-3, 8)
    total = options.servers * options.gpus
    return [
        "[[reservation]]",
        f'class = "{random.choice(CLASSES)}"',
        f"count = {random.choice((1, 2, max(1, total // 2), total))}",
        *([f'servers = ["rack={random.choice(RACKS)}"]'] if random.random() < 0.3 else []),
        f"from = {_date(start_s)}",
        f"to = {_date(start_s + random.randint(3, 12))}",
    ]


def _anybody(random: Random) -> str:
    return random.choice(("defaults", *(f"class.{name}" for name in CLASSES)))


def _put(tables: Tables, table: str, key: str, value: str) -> None:
    tables.setdefault(table, {})[key] = value


def _written(tables: Tables) -> list[str]:
    return [
        line
        for name, values in tables.items()
        for line in (f"[{name}]", *(f"{key} = {value}" for key, value in values.items()))
    ]


def _words(words: list[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _time(utc_s: int) -> str:
    return datetime.fromtimestamp(utc_s, UTC).strftime("%H:%M:%S")


def _date(utc_s: int) -> str:
    return datetime.fromtimestamp(utc_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
