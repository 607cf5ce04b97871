"""How many rows each source gives to a training split. sql/composing/datasets.sql decides by hash which rows they are, so a new
row displaces as many rows as the quotas change by, and reshuffles none."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import md5
from typing import NamedTuple, TypeVar

from model_ops.jobs import counted
from resources.composing.dataset_settings import DatasetSettings, SourceLimits

TEMPERATURES = {"none": 1.0, "sqrt": 0.5, "uniform": 0.0}


class Pool(NamedTuple):
    """The rows of one source that are alike in being synthetic or not."""

    source: str
    synthetic: bool = False


class Take(NamedTuple):
    """What a cluster of rows gives: every row `copies` times, and `more` of them once more."""

    copies: int
    more: int


Name = TypeVar("Name")

_NO_LIMITS = SourceLimits()


def sampling_quotas(available: Mapping[Pool, int], settings: DatasetSettings) -> dict[Pool, int]:
    """Training rows of each pool, repeats included. Numbers of rows are served first; the rest is divided by share. A pool with
    too few rows gives all that `max_repeats` allows, and the others share the rest. `max_rows`, `max_share` and
    `max_synthetic_share` then lower what a source gives until all of them hold."""
    room = {pool: rows * _limits(settings, pool).max_repeats for pool, rows in available.items()}
    while True:
        given = _drawn(available, room, settings)
        broken = next(_broken(given, settings), None)
        if broken is None:
            return given
        pools, most = broken
        room |= handed_out({pool: given[pool] for pool in pools}, {pool: float(given[pool]) for pool in pools}, most)


def shortfalls(available: Mapping[Pool, int], given: Mapping[Pool, int], settings: DatasetSettings) -> list[str]:
    """A sentence for each wish of the settings that the rows do not fulfil, bounds of the settings apart."""
    sentences = []
    for source, wish in settings.mix.items():
        got, has = _sum(given, source), _sum(available, source)
        bounds = _limits(settings, Pool(source))
        bounded = bounds.max_rows is not None or bounds.max_share is not None or settings.max_synthetic_share is not None
        repeats = bounds.max_repeats
        if wish.rows is not None and got < wish.rows and not bounded:
            sentences.append(
                f"mix asks for {wish.rows:,} rows of {source}, which has {counted(has, 'row')} for training"
                + (f", each {repeats} times at most" if repeats > 1 else "")
            )
        if wish.share and not has:
            sentences.append(f"mix gives {source} a share, and it has no row for training")
        elif wish.share and settings.max_rows and got == has * repeats and not bounded:
            wanted = settings.max_rows * wish.share / sum(other.share or 0 for other in settings.mix.values())
            if got < int(wanted) and not any(other.rows for other in settings.mix.values()):
                sentences.append(
                    f"mix asks for {int(wanted):,} rows of {source} ({wish.share:g} of the shares), which has "
                    f"{counted(has, 'row')} for training"
                )
    total = sum(given.values())
    if settings.max_rows is not None and total < settings.max_rows and settings.mix:
        sentences.append(f"max_rows asks for {settings.max_rows:,} rows, and the mix has {total:,}")
    return sentences


def cluster_takes(sizes: Mapping[str, int], wanted: int, balance: str) -> dict[str, Take]:
    """What each cluster gives so that `wanted` rows come together. No row is repeated before all are used."""
    total = sum(sizes.values())
    copies, more = divmod(wanted, total) if total else (0, 0)
    return {cluster: Take(copies, rows) for cluster, rows in cluster_quotas(sizes, more, balance).items()}


def cluster_quotas(sizes: Mapping[str, int], wanted: int, balance: str) -> dict[str, int]:
    """Rows per cluster of prompts, out of `wanted`: in proportion to size ** (1, 1/2 or 0), at most the cluster's size. With
    `uniform`, a cluster no larger than its equal share is used whole."""
    weights = {cluster: float(size) ** TEMPERATURES[balance] for cluster, size in sizes.items()}
    return handed_out(sizes, weights, min(wanted, sum(sizes.values())))


def handed_out(available: Mapping[Name, int], weights: Mapping[Name, float], wanted: int) -> dict[Name, int]:
    """Integers that add up to `wanted` as far as possible: by weight, then by largest remainder (ties by hash of the name)."""
    given = dict.fromkeys(available, 0)
    still = [name for name in available if weights[name] > 0]
    while still and wanted > 0:
        total = sum(weights[name] for name in still)
        exact = {name: wanted * weights[name] / total for name in still}
        short = {name for name in still if available[name] <= exact[name]}
        if not short:
            given.update({name: int(share) for name, share in exact.items()})
            left = wanted - sum(given[name] for name in still)
            by_remainder = sorted(still, key=lambda name: (int(exact[name]) - exact[name], md5(str(name).encode()).hexdigest()))
            for name in by_remainder[:left]:
                given[name] += 1
            return given
        for name in short:
            given[name] = available[name]
            wanted -= available[name]
        still = [name for name in still if name not in short]
    return given


def _drawn(available: Mapping[Pool, int], room: Mapping[Pool, int], settings: DatasetSettings) -> dict[Pool, int]:
    """Rows of each pool by the mix, with room for so many rows of each, without the bounds between pools."""
    given = dict.fromkeys(available, 0)
    for source, wish in settings.mix.items():
        pools = [pool for pool in available if pool.source == source]
        if wish.rows is not None:
            weights = {pool: float(available[pool]) for pool in pools}
            given |= handed_out({pool: room[pool] for pool in pools}, weights, wish.rows)
    shares = {pool: _share(settings, pool, available) for pool in available}
    sharing = [pool for pool in available if shares[pool] > 0]
    named = sum(available[pool] for pool in sharing)
    wanted = named if settings.max_rows is None else settings.max_rows - sum(given.values())
    if settings.max_rows is not None and all(_limits(settings, pool).max_repeats == 1 for pool in sharing):
        wanted = min(wanted, named)
    return given | handed_out({pool: room[pool] for pool in sharing}, shares, wanted)


def _share(settings: DatasetSettings, pool: Pool, available: Mapping[Pool, int]) -> float:
    if not settings.mix:
        return float(available[pool])
    wish = settings.mix.get(pool.source)
    whole = _sum(available, pool.source)
    return wish.share * available[pool] / whole if wish is not None and wish.share and whole else 0.0


def _broken(given: Mapping[Pool, int], settings: DatasetSettings) -> Iterator[tuple[list[Pool], int]]:
    """Bounds that do not hold: (the pools together, the most rows that they may give)."""
    total = sum(given.values())
    groups: list[tuple[Iterable[Pool], int | None, float | None]] = [
        ([pool for pool in given if pool.source == source], bounds.max_rows, bounds.max_share)
        for source, bounds in settings.limits.items()
    ]
    groups.append(([pool for pool in given if pool.synthetic], None, settings.max_synthetic_share))
    for pools, most, share in groups:
        pools = list(pools)
        bound = min(
            [bound for bound in (most, None if share is None else int(share * total + 1e-9)) if bound is not None],
            default=total,
        )
        if sum(given[pool] for pool in pools) > bound:
            yield pools, bound


def _limits(settings: DatasetSettings, pool: Pool) -> SourceLimits:
    return settings.limits.get(pool.source, _NO_LIMITS)


def _sum(rows: Mapping[Pool, int], source: str) -> int:
    return sum(count for pool, count in rows.items() if pool.source == source)
