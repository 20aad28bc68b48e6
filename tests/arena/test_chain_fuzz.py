"""Chains of one to five pools at random, near full, checked against every rule after every call."""

import importlib.util
import itertools
import random

import chain_pair
import numba
import pytest
from all_layouts import HIGH, LOW, MIDDLE
from chain_pair import ChainPair, ListedChainPair, ints

from kvstead.arena import page_map, span, sub_pool
from kvstead.errors import ForeignPage, KVSteadError
from kvstead.kernels import spans
from kvstead.kernels.host import FREE, PARKED
from kvstead.pages.free_list import ORDERS
from paths import SHARED

CHAINS = {
    "one end": ([(5, LOW)], 60),
    "the other end": ([(5, HIGH)], 62),
    "one middle pool": ([(3, MIDDLE)], 50),
    "two ends": ([(3, LOW), (7, HIGH)], 150),
    "a middle pool between": ([(7, LOW), (2, MIDDLE), (3, HIGH)], 120),
    "a fat middle pool": ([(2, LOW), (9, MIDDLE), (5, HIGH)], 200),
    "three middle pools": ([(5, LOW), (2, MIDDLE), (7, MIDDLE), (3, MIDDLE), (4, HIGH)], 180),
    "middle pools alone": ([(4, MIDDLE), (3, MIDDLE), (5, MIDDLE)], 130),
}


def some(rng, items, most=4):
    items = list(items)
    return rng.sample(items, rng.randint(0, min(most, len(items))))


def step(rng, pair):
    """One call; takes prevail until the arena is full."""
    name = rng.choice(pair.names)
    dice = rng.random() * (0.6 if pair.occupancy() < 0.88 else 1)
    if dice < 0.45:
        pair.take(name, rng.choice([0, 1, 1, 1, 2, 3, 4, 7]))
    elif dice < 0.7:
        pair.release(name, some(rng, pair.live[name]))
    elif dice < 0.8:
        pair.park(name, some(rng, pair.live[name]))
    elif dice < 0.88:
        pair.unpark(name, some(rng, pair.parked[name]))
    elif dice < 0.95:
        pair.compact(rng.choice([None, 0, 1, 3, 7, 20]))
    else:
        pair.is_open = not pair.is_open or rng.random() < 0.5


def churn(chain, seed, steps, *, eager, zero_on_take=False):
    """Random calls on one of the chains; which takes were refused while more than nine tenths were used."""
    rng = random.Random(seed)
    sizes, total = CHAINS[chain]
    pair = ListedChainPair(sizes, total, order=ORDERS[seed % 3], eager=eager, zero_on_take=zero_on_take)
    refused = []
    for _ in range(steps):
        count = rng.choice([1, 2, 3])
        step(rng, pair)
        if pair.occupancy() > 0.9:
            refused.append(pair.take(rng.choice(pair.names), count) is None)
    return refused


@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_keep_every_rule(chain, eager):
    """Geometry, tables, bytes, fences, gate and the answers of `take`, after each of some hundred calls."""
    refused = [churn(chain, seed, 100, eager=eager, zero_on_take=seed == 2) for seed in range(3)]
    assert sum(map(len, refused)) > 30
    assert any(map(any, refused))


@pytest.mark.soak
@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_keep_every_rule_for_long(chain, eager):
    """As above, for more seeds and calls."""
    for seed in range(10, 18):
        churn(chain, seed, 300, eager=eager, zero_on_take=seed % 4 == 2)


def model_of(sizes, total, *, eager):
    """The model of the chain that lies beside the project, or a reason to skip."""
    path = SHARED / "reference" / "pool_chain_model.py"
    if not path.exists():
        pytest.skip("the model of the chain is not beside the project")
    spec = importlib.util.spec_from_file_location("pool_chain_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kinds = {LOW: "up", MIDDLE: "float", HIGH: "down"}
    pools = [("abcdefgh"[at], size, kinds[place]) for at, (size, place) in enumerate(sizes)]
    return module.Chain(total, pools, eager)


def side_by_side(chain, seed, steps, *, eager):
    """The same takes and releases on a chain and on the model; how many takes were refused."""
    rng = random.Random(seed)
    sizes, total = CHAINS[chain]
    pair = ChainPair(sizes, total, eager=eager, storage=False)
    model = model_of(sizes, total, eager=eager)
    num_refused = 0
    for _ in range(steps):
        name = rng.choice(pair.names)
        if rng.random() < 0.6 or not pair.live[name]:
            count = rng.randint(1, 5)
            free = [v for v in range(1, pair.chain.pools[name].map.num_virtual + 1) if v not in pair.live[name]]
            fits = model.take(name, free[:count]) is not None
            assert (pair.take(name, count, fits=fits) is not None) == fits
            num_refused += not fits
        else:
            v_pages = some(rng, pair.live[name])
            model.free(name, v_pages)
            pair.release(name, v_pages)
        model.audit()
        assert [pair.chain.num_used(name) for name in pair.names] == [pool.L for pool in model.P]
    return num_refused


@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_take_what_the_model_takes(chain, eager):
    """Takes succeed and fail as in the small model of a chain."""
    assert sum(side_by_side(chain, seed, 120, eager=eager) for seed in range(3)) > 10


@pytest.mark.soak
@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_take_what_the_model_takes_for_long(chain, eager):
    """As above, for more seeds and calls."""
    for seed in range(10, 18):
        side_by_side(chain, seed, 300, eager=eager)


@pytest.fixture
def plain_kernels(monkeypatch):
    """The kernels a second time, as plain Python."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    spec = importlib.util.spec_from_file_location("plain_spans", spans.__file__)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    return plain


@pytest.mark.parametrize("chain", ["two ends", "three middle pools"])
@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
def test_kernels_do_the_same_as_python(chain, eager, plain_kernels, monkeypatch):
    """One trace with compiled kernels and with plain ones: every table, span and byte is the same after every call."""
    states = []
    for kernels in (spans, plain_kernels):
        for module in (span, page_map, sub_pool):
            monkeypatch.setattr(module, "spans", kernels)
        monkeypatch.setattr(chain_pair, "ROUNDS", itertools.cycle(range(1, 251)))
        rng = random.Random(9)
        pair = ListedChainPair(*CHAINS[chain], eager=eager)
        states.append([])
        for _ in range(120):
            step(rng, pair)
            pair.compact(rng.choice([0, 0, 3, None]))
            for pool in pair.chain.pools.values():
                slots = pool.map.translate(ints(range(-1, 20)), 2)
                assert ((slots == 0) | (pool.map.p2v[slots // 2] > 0)).all()
                pair.refused(ForeignPage, "slot -2", pool.map.translate, ints([0, -2]), 2)
            name = rng.choice(pair.names)
            for bad in (99, 0):
                wrong = ints([*pair.live[name], bad, *pair.live[name]])
                for call in (pair.chain.release, pair.chain.take):
                    pair.refused((KVSteadError, AssertionError), "page", call, name, wrong)
            free = pair.ids[name].contents()[:1]
            pair.refused(KVSteadError, "page", pair.chain.release, name, ints([*pair.live[name], *free, 99]))
            for bad in (99, 0, *free, *list(pair.parked[name])[:1]):
                wrong = ints([*pair.live[name], bad])
                for after in (FREE, PARKED):
                    pair.refused(KVSteadError, f"page {bad} ", pair.ids[name].leave, wrong, after)
            states[-1].append((pair.state(), str(pair.live)))
    assert states[0] == states[1]


@pytest.mark.parametrize("chain", CHAINS)
def test_eager_and_lazy_take_the_same(chain):
    """One trace with both: the same takes succeed, and after a compaction both have the same holes, none, and gaps."""
    sizes, total = CHAINS[chain]
    for seed in range(3):
        rng = random.Random(seed)
        pairs = [ChainPair(sizes, total, eager=eager) for eager in (False, True)]
        for _ in range(80):
            name = rng.choice(pairs[0].names)
            if rng.random() < 0.6 or not pairs[0].live[name]:
                count = rng.randint(1, 5)
                lazy, eager = (pair.take(name, count) for pair in pairs)
                assert lazy == eager
            else:
                v_pages = some(rng, pairs[0].live[name])
                for pair in pairs:
                    pair.release(name, v_pages)
            ends = [pool.span.extent for pool in pairs[1].chain.pools.values() if pool.spec.place]
            assert not any(extent.num_holes for extent in ends)
        for pair in pairs:
            pair.compact()
        used = [[pool.map.v2p != -1 for pool in pair.chain.pools.values()] for pair in pairs]
        assert all((one == other).all() for one, other in zip(*used, strict=True))
