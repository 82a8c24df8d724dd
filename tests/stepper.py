"""A slow and obvious simulator of serving fleets: every step of every replica, token by token.

It is the judge of the event engine and shares nothing with it: it knows no series of work, no jumps and no
heaps, it looks at what each request holds in each step and writes the step time out from the law's own words.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from des._random import uniform

NEVER = math.inf
KIMURA = "kimura"


@dataclass(eq=False)
class Request:
    """A request, what became of it, and what it holds at the moment.

    Attributes:
        number: rank in order of coming; ties of instants and victims are decided by it.
        due: instant at which its user would send it, seconds.
        input, output: tokens.
        pool: the pool it belongs to; -1 for any pool of `pools`.
        pools: pools that can hold it, ascending.
        blocks: ids of its prompt's prefix blocks.
        sent, admit, first, end: instants in seconds. `admit` is the first admission of the life that completes.
        replica: the last one it was given to.
        steps: completed steps of its replica while it was running, since it was last sent or retried.
        prefill_replica, prefill_end, transfer_end, decode_admit: of disaggregated fleets.
        prompt, done: tokens to be in the KV cache before it decodes, and those that are.
        generated: output tokens it has.
        piece: prompt tokens it computes in the coming step.
        held: KV blocks it holds.
        ready: queued with a KV cache that only has to be put in place (from swap or from the prefill pool).
        swapped: that KV cache is in CPU memory.
        transferred: its prefill in pool 0 is over.
        computed: tokens that its last preemption left in freed blocks.
    """

    number: int
    due: float
    input: int
    output: int
    pool: int = 0
    pools: tuple = ()
    blocks: tuple = ()
    sent: float = math.nan
    replica: int = -1
    admit: float = math.nan
    first: float = math.nan
    end: float = math.nan
    preemptions: int = 0
    retries: int = 0
    steps: int = 0
    prefill_replica: int = -1
    prefill_end: float = math.nan
    transfer_end: float = math.nan
    decode_admit: float = math.nan
    prompt: int = 0
    done: int = 0
    generated: int = 0
    piece: int = 0
    held: int = 0
    ready: bool = False
    swapped: bool = False
    transferred: bool = False
    computed: int = 0

    @property
    def total(self):
        return self.input + self.output

    @property
    def decoding(self):
        """Whether the whole prompt is in the KV cache; asked of running requests only."""
        return self.done == self.prompt

    def prepare_prompt(self):
        """All its tokens so far are to be computed as a prompt."""
        self.prompt, self.done, self.piece = self.input + self.generated, 0, 0
        self.ready = self.swapped = False

    def forget(self):
        """Back to the state in which it came, for another try from scratch."""
        self.generated = self.held = self.computed = self.steps = 0
        self.admit = self.first = self.prefill_end = self.transfer_end = self.decode_admit = math.nan
        self.prefill_replica = -1
        self.transferred = False
        self.prepare_prompt()


@dataclass
class Options:
    """How the fleet is run.

    Attributes:
        dispatch: least-loaded, random, round-robin, power-of-two or prefix-affinity.
        spill_pressure: load per place from which a request goes to the next pool; None for never.
        concurrency: requests outstanding at most (closed loop); None for open loop.
        transfer: None, or (latency_s, s_per_token) of the link from pool 0 (prefill) to pool 1 (decode).
        timeline: (instant, replica, "down" | "up" | "drain"), ascending.
        seed: of the dispatcher's random numbers.
        affinity_slack: load above the least at which prefix-affinity still follows a prefix.
        prefix_block_tokens: tokens of a prefix block.
    """

    dispatch: str = "least-loaded"
    spill_pressure: float | None = None
    concurrency: int | None = None
    transfer: tuple | None = None
    timeline: tuple = ()
    seed: int = 0
    affinity_slack: int = 2
    prefix_block_tokens: int = 16


@dataclass
class Law:
    """A pool's profile as plain numbers."""

    overhead: float
    base: float
    per_sequence: float
    per_token: float
    prefill_per_token: float
    prefill_per_token2: float
    chunk: int
    blocks: int
    block_tokens: int
    limit: int

    @classmethod
    def of(cls, design, pool, convention):
        p = design.profile
        seconds = (p.overhead_s, p.base_s, p.per_sequence_s, p.per_token_s)
        seconds += (p.prefill_per_token_s, p.prefill_per_token2_s)
        counts = (p.chunk_tokens, p.kv_blocks, p.block_tokens)
        limit = num_slots(design, pool) if convention == KIMURA else int(p.max_num_seqs[pool])
        return cls(*(float(v[pool]) for v in seconds), *(int(v[pool]) for v in counts), limit)

    def prompt_time(self, tokens):
        """What prompt tokens of a step add to it beside their context: the smooth maximum of the two bounds."""
        return (self.base**4 + (self.prefill_per_token * tokens) ** 4) ** 0.25 - self.base

    def held_time(self, context):
        return self.per_sequence + self.per_token * context


def ceil_div(a, b):
    return -(-a // b)


def num_slots(design, pool):
    """The reference model's places: KV blocks for `max_context` tokens each, and the bandwidth bound scaled to it."""
    p, context = design.profile, int(design.max_context[pool])
    by_blocks = int(p.kv_blocks[pool]) // ceil_div(context, int(p.block_tokens[pool]))
    return min(by_blocks, int(p.max_num_seqs[pool]) * int(p.calibration_context[pool]) // context)


class PrefixCache:
    """Prefix blocks that a replica keeps, the most recently used last."""

    def __init__(self, capacity):
        self.capacity, self.ids = capacity, []

    def hit(self, blocks):
        """How many leading blocks are there."""
        hit = 0
        while hit < len(blocks) and blocks[hit] in self.ids:
            hit += 1
        return hit

    def use(self, blocks):
        for block in reversed(blocks):
            if block in self.ids:
                self.ids.remove(block)
            self.ids.append(block)
        del self.ids[: max(len(self.ids) - self.capacity, 0)]


@dataclass(eq=False)
class Replica:
    """One engine: its running requests in order of admission, its queue, its free blocks.

    A free block is the label of what it still holds, (request, preemption, rank in the request), or None; the
    next one to be taken stands first.
    """

    number: int
    pool: int
    law: Law
    convention: str
    serving: object
    options: Options
    prefill_only: bool
    last_change: int
    running: list = field(default_factory=list)
    queue: deque = field(default_factory=deque)
    begin: float = -1.0
    step_end: float = NEVER

    def __post_init__(self):
        self.reset()

    def reset(self):
        """As new: nothing running, nothing queued, empty caches."""
        self.running.clear()
        self.queue.clear()
        self.free = deque([None] * self.law.blocks)
        self.prefixes = PrefixCache(self.serving.prefix_cache_blocks)
        self.begin, self.step_end = -1.0, NEVER
        self.moved_tokens, self.preempted = 0, False

    @property
    def load(self):
        return len(self.running) + len(self.queue)

    @property
    def prompt_tokens(self):
        """Prompt tokens in the coming step."""
        return sum(r.piece for r in self.running)

    @property
    def paused(self):
        return self.serving.scheduling == "prefill-first" and self.prompt_tokens > 0

    def decoders(self):
        """Running requests that have their prompt behind them, whether or not the coming step lets them decode."""
        return [r for r in self.running if r.decoding]

    # --- blocks -------------------------------------------------------------------------------------------------

    def blocks_needed(self, r):
        """Blocks that must be free to admit a request."""
        if self.convention == KIMURA and self.serving.kv == "reserve":
            return 0
        tokens = r.total
        if self.prefill_only:
            tokens = r.input
        elif self.serving.kv == "grow":
            stored_later = r.ready and self.serving.scheduling == "prefill-first"
            tokens = r.input + r.generated - (1 if stored_later else 0)
        return ceil_div(tokens, self.law.block_tokens)

    def take_blocks(self, r, number):
        for _ in range(number):
            self.free.popleft()
        r.held += number

    def release_blocks(self, r):
        """Free a request's blocks, the last one first, so that its first block is reused last."""
        self.free.extend((r.number, r.preemptions, rank) for rank in reversed(range(r.held)))
        r.held = 0

    def surviving_blocks(self, r):
        """Leading full blocks that a preempted request left behind and nobody has reused."""
        if self.serving.preemption != "cached" or r.ready:
            return 0
        most = min(r.computed // self.law.block_tokens, (r.prompt - 1) // self.law.block_tokens)
        hit = 0
        while hit < most and (r.number, r.preemptions, hit) in self.free:
            hit += 1
        return hit

    def cached_tokens(self, r):
        """Prompt tokens that need not be computed if the request is admitted now."""
        if r.ready:
            return r.prompt
        prefix = min(self.prefixes.hit(r.blocks) * self.options.prefix_block_tokens, r.input - 1)
        return max(prefix, self.surviving_blocks(r) * self.law.block_tokens)

    # --- admission ----------------------------------------------------------------------------------------------

    def budget_left(self):
        """Tokens of the budget that the coming step still has for prompts."""
        left = self.serving.max_num_batched_tokens - self.prompt_tokens
        return left if self.serving.scheduling == "prefill-first" else left - len(self.decoders())

    def has_budget(self, r):
        scheduling = self.serving.scheduling
        if scheduling == "independent" or r.ready:
            return True
        if scheduling == "chunked":
            return self.budget_left() >= 1
        alone = self.prompt_tokens == 0 and (scheduling == "prefill-first" or not self.decoders())
        return alone or r.prompt - self.cached_tokens(r) <= self.budget_left()

    def has_place(self, r):
        return len(self.running) < self.law.limit and self.has_budget(r)

    def fits(self, r):
        return self.has_place(r) and self.blocks_needed(r) <= len(self.free)

    def next_piece(self, r):
        left = r.prompt - r.done
        if self.serving.scheduling == "independent":
            return min(self.law.chunk, left)
        return min(self.budget_left(), left) if self.serving.scheduling == "chunked" else left

    def admit(self, r, now):
        cached, survivors = self.cached_tokens(r), self.surviving_blocks(r)
        for rank in range(survivors):
            self.free.remove((r.number, r.preemptions, rank))
        self.take_blocks(r, self.blocks_needed(r) - survivors)
        r.held += survivors
        if r.swapped:
            self.moved_tokens += r.input + r.generated - 1
        if not r.ready:
            self.prefixes.use(r.blocks)
        r.done, r.ready, r.swapped = cached, False, False
        r.piece = 0 if r.decoding else self.next_piece(r)
        r.admit = now if math.isnan(r.admit) else r.admit
        if r.transferred and math.isnan(r.decode_admit):
            r.decode_admit = now
        self.running.append(r)

    def take_queue(self, now):
        """Admit from the head of the queue while the head fits."""
        while self.queue and not self.preempted:
            head = self.queue[0]
            if not self.fits(head) and not self.can_overflow(head):
                return
            self.queue.popleft()
            self.overflow_for(head)
            self.admit(head, now)

    # --- preemption ---------------------------------------------------------------------------------------------

    def can_overflow(self, head):
        """Whether preempting running requests lets the head in, which nobody asks for twice."""
        if self.serving.kv != "overflow" or head.preemptions > 0 or not self.has_place(head):
            return False
        return self.blocks_needed(head) <= len(self.free) + sum(r.held for r in self.running)

    def overflow_for(self, head):
        while self.blocks_needed(head) > len(self.free):
            self.preempt(max(self.running, key=lambda r: (r.total, r.number)))

    def preempt(self, r):
        """Take a request out of the running and put it at the head of the queue."""
        self.running.remove(r)
        r.preemptions += 1
        self.release_blocks(r)
        if self.serving.kv == "overflow":
            self.start_again(r)
        elif self.serving.preemption == "swap" and r.generated > 0:
            self.moved_tokens += r.input + r.generated - 1
            r.ready = r.swapped = True
        else:
            r.computed = r.input + r.generated - 1 if r.decoding else r.done
            r.prepare_prompt()
        self.queue.appendleft(r)

    def start_again(self, r):
        """Nothing remains of this life on this replica."""
        r.generated, r.first = 0, math.nan
        if r.transferred:
            r.decode_admit = math.nan
        else:
            r.admit = math.nan
        r.prepare_prompt()

    def context(self, r):
        """Tokens that a running request holds in the coming step."""
        return r.input + r.generated if r.decoding else r.done + r.piece

    def lacking_blocks(self, r):
        return max(ceil_div(self.context(r), self.law.block_tokens) - r.held, 0)

    def grow(self):
        """Room for the token that each decoding request stores in the coming step."""
        while sum(self.lacking_blocks(r) for r in self.decoders()) > len(self.free):
            self.preempt(max(self.running, key=lambda r: r.number))
            self.preempted = True
        for r in self.decoders():
            self.take_blocks(r, self.lacking_blocks(r))

    # --- steps --------------------------------------------------------------------------------------------------

    def boundary(self, now):
        """Decide on the coming step."""
        self.begin, self.moved_tokens, self.preempted = now, 0, False
        prefill_first = self.serving.scheduling == "prefill-first"
        if self.serving.kv == "grow" and not prefill_first:
            self.grow()
        for r in self.running:
            r.piece = 0 if r.decoding else self.next_piece(r)
        self.take_queue(now)
        if self.serving.kv == "grow" and prefill_first and not self.paused and self.running:
            self.grow()
            self.preempted = True  # the step is one of decoding: who comes now has to wait for the next
        self.start_step()

    def start_step(self):
        self.step_end = self.begin + self.step_time() if self.running else NEVER

    def wake(self, now):
        """Somebody came to the queue, or blocks became free, while no step ended."""
        if self.begin == now:
            self.take_queue(now)
            self.start_step()
        elif not self.running:
            self.boundary(now)

    def step_time(self):
        fixed = self.law.overhead + self.law.base + self.moved_tokens * self.serving.swap_s_per_token
        if self.serving.scheduling == "independent":
            return fixed + sum(self.own_work(r) for r in self.running)
        taking_part = [r for r in self.running if r.piece > 0 or not self.paused]
        held = sum(self.law.held_time(self.context(r)) for r in taking_part)
        attention = self.law.prefill_per_token2 * sum(r.piece * self.context(r) for r in taking_part)
        prompt = self.law.prompt_time(self.prompt_tokens) if self.prompt_tokens > 0 else 0.0
        return fixed + held + attention + prompt

    def own_work(self, r):
        """Seconds that a request adds to the coming step where each has its own chunk."""
        law = self.law
        if self.convention == KIMURA:
            return law.held_time(r.total) + max(law.prefill_per_token * r.piece - law.base, 0.0)
        held = law.held_time(self.context(r))
        if r.piece == 0:
            return held
        return held + law.prompt_time(r.piece) + law.prefill_per_token2 * r.piece * self.context(r)

    def finish_step(self, now):
        """Every request gets its piece or its token. Returns those that are through here, in order."""
        in_order = sorted(self.running, key=lambda r: r.number)
        prompts = [r for r in in_order if r.piece > 0]
        decodes = [r for r in in_order if r.decoding and not self.paused]
        for r in prompts:
            self.finish_piece(r, now)
        for r in decodes:
            r.generated += 1
        for r in self.running:
            r.steps += 1
        through = [r for r in prompts + decodes if r.decoding and self.is_through(r)]
        for r in through:
            self.running.remove(r)
        return through

    def is_through(self, r):
        return self.prefill_only or r.generated == r.output

    def finish_piece(self, r, now):
        r.done, r.piece = r.done + r.piece, 0
        if not r.decoding:
            return
        r.generated += 0 if self.convention == KIMURA else 1
        if self.prefill_only:
            r.prefill_end = now
        elif math.isnan(r.first):
            r.first = now


class Fleet:
    """All replicas, the dispatcher, the clients and the link between prefill and decode."""

    def __init__(self, design, convention, serving, requests, options):
        self.options, self.now = options, 0.0
        self.replicas, self.members = [], []
        for pool in range(design.num_pools):
            law = Law.of(design, pool, convention)
            prefill_only = options.transfer is not None and pool == 0
            self.members.append([])
            for _ in range(int(design.replicas[pool])):
                number = len(self.replicas)
                rank = number - 10**9  # before any change of load
                e = Replica(number, pool, law, convention, serving, options, prefill_only, last_change=rank)
                self.replicas.append(e)
                self.members[pool].append(e)
        self.unsent, self.timeline = deque(requests), deque(options.timeline)
        self.hold, self.link, self.link_free = [], deque(), 0.0
        self.turns, self.changes, self.outstanding = {}, 0, 0

    # --- events -------------------------------------------------------------------------------------------------

    def run(self):
        while (now := self.next_instant()) < NEVER:
            self.now = now
            for e in self.replicas:
                if e.step_end == now:
                    self.end_step(e)
            self.change_replicas(now)
            while self.link and self.link[0][0] == now:
                self.end_transfer(self.link.popleft()[1])
            while self.next_sending() == now:
                self.send(self.unsent.popleft())

    def next_instant(self):
        step = min((e.step_end for e in self.replicas), default=NEVER)
        change = self.timeline[0][0] if self.timeline else NEVER
        transfer = self.link[0][0] if self.link else NEVER
        return min(step, change, transfer, self.next_sending())

    def next_sending(self):
        limit = self.options.concurrency
        if not self.unsent or (limit is not None and self.outstanding >= limit):
            return NEVER
        return max(self.unsent[0].due, self.now)

    def send(self, r):
        r.sent = self.now
        self.outstanding += 1
        r.forget()
        self.dispatch(r)

    def end_step(self, e):
        through = e.finish_step(self.now)
        for r in through:
            if e.prefill_only and r.output > 1:
                self.join_link(r)
            else:
                self.end(e, r)
        if through:
            self.mark_change(e)
        e.boundary(self.now)

    def end(self, e, r):
        r.end = self.now
        r.first = self.now if math.isnan(r.first) else r.first
        e.release_blocks(r)
        self.outstanding -= 1

    def join_link(self, r):
        latency, per_token = self.options.transfer
        self.link_free = max(self.link_free, self.now) + (latency + r.input * per_token)
        self.link.append((self.link_free, r))

    def end_transfer(self, r):
        r.transfer_end = r.first = self.now
        source = self.replicas[r.prefill_replica]
        source.release_blocks(r)
        source.wake(self.now)
        r.transferred = r.ready = True
        self.dispatch(r)

    # --- replicas that come and go ------------------------------------------------------------------------------

    def change_replicas(self, now):
        """All changes of an instant; then those who found no replica try again, in order of coming."""
        if not self.timeline or self.timeline[0][0] != now:
            return
        while self.timeline and self.timeline[0][0] == now:
            _, number, what = self.timeline.popleft()
            {"up": self.up, "drain": self.drain, "down": self.down}[what](self.replicas[number])
        held, self.hold = self.hold, []
        for r in held:
            self.dispatch(r)

    def up(self, e):
        members = self.members[e.pool]
        if e in members:
            return
        members.append(e)
        self.mark_change(e)

    def drain(self, e):
        members = self.members[e.pool]
        if e in members:
            members[members.index(e)] = members[-1]
            members.pop()

    def down(self, e):
        self.drain(e)
        lost = sorted([*e.running, *e.queue], key=lambda r: r.number)
        e.reset()
        for _, r in self.link:
            if r.prefill_replica == e.number:
                r.held = 0
        for r in lost:
            r.retries += 1
            r.forget()
        for r in lost:
            self.dispatch(r)

    # --- dispatch -----------------------------------------------------------------------------------------------

    def mark_change(self, e):
        e.last_change = self.changes
        self.changes += 1

    def dispatch(self, r):
        scope = self.scope(r)
        candidates = [e for pool in scope for e in self.members[pool]]
        if not candidates:
            self.hold.append(r)
            return
        e = self.choose(r, candidates, "any" if r.pool < 0 else scope[0])
        r.replica = e.number
        if e.prefill_only:
            r.prefill_replica = e.number
        e.queue.append(r)
        self.mark_change(e)
        e.wake(self.now)

    def scope(self, r):
        """The pools it may go to."""
        if self.options.transfer is not None:
            return [1 if r.transferred else 0]
        if r.pool < 0:
            return sorted(r.pools)
        pool, threshold = r.pool, self.options.spill_pressure
        while threshold is not None and self.pressure(pool) >= threshold and self.can_take(pool + 1, r):
            pool += 1
        return [pool]

    def pressure(self, pool):
        members = self.members[pool]
        if not members:
            return math.inf
        return sum(e.load for e in members) / (len(members) * members[0].law.limit)

    def can_take(self, pool, r):
        return pool in r.pools and len(self.members[pool]) > 0

    def choose(self, r, candidates, turn):
        dispatch = self.options.dispatch
        if dispatch == "least-loaded":
            return least_loaded(candidates)
        if dispatch == "prefix-affinity":
            return self.longest_hit(r, candidates)
        if dispatch == "round-robin":
            self.turns[turn] = self.turns.get(turn, 0) + 1
            return candidates[(self.turns[turn] - 1) % len(candidates)]
        u1, u2 = (uniform(self.options.seed, r.number, 2 * r.retries + draw) for draw in range(2))
        if dispatch == "random":
            return candidates[int(u1 * len(candidates))]
        return less_loaded_of_two(candidates, u1, u2)

    def longest_hit(self, r, candidates):
        most = min(e.load for e in candidates) + self.options.affinity_slack
        near = [e for e in candidates if e.load <= most]
        hits = [e.prefixes.hit(r.blocks) for e in near]
        return least_loaded([e for e, hit in zip(near, hits, strict=True) if hit == max(hits)])


def least_loaded(candidates):
    """The pool whose least loaded replica is the least full; there the least load, unchanged for longest."""
    least = {}
    for e in candidates:
        least[e.pool] = min(least.get(e.pool, e.load), e.load)
    return min(candidates, key=lambda e: (least[e.pool] / e.law.limit, e.pool, e.load, e.last_change))


def less_loaded_of_two(candidates, u1, u2):
    one, other = candidates[int(u1 * len(candidates))], candidates[int(u2 * len(candidates))]
    return other if other.load / other.law.limit < one.load / one.law.limit else one


def run(design, convention, serving, requests, options):
    """Run `requests`, in order of number and of `due`, through the fleet and fill in what became of them.

    Args:
        design: a FleetDesign of whole replicas.
        convention: "step" or "kimura".
        serving: `des.serving.Serving`.
        requests: `Request` objects that their pools can hold.
        options: `Options`.
    """
    if convention == KIMURA and (serving.budgeted or serving.kv == "grow" or options.transfer is not None):
        raise ValueError("the kimura convention knows independent requests, reserved or overflowing blocks, one phase")
    Fleet(design, convention, serving, requests, options).run()


def can_hold(design, convention, serving, pool, request, transfer=False):
    """Whether a pool can run a request at all, alone on an idle replica; of a prefill pool, its prompt."""
    law = Law.of(design, pool, convention)
    tokens = request.input if transfer and pool == 0 else request.total
    if request.total > design.max_context[pool] or int(design.replicas[pool]) == 0 or law.limit < 1:
        return False
    looks_at_blocks = convention != KIMURA or serving.kv == "overflow"
    return not looks_at_blocks or ceil_div(tokens, law.block_tokens) <= law.blocks


def as_arrays(requests, *names):
    """Columns of a finished run."""
    return [np.array([getattr(r, name) for r in requests]) for name in names]
