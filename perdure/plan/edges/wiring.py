"""The wiring of a plan: which call reads what which other call writes, kept up to date as calls arrive and end (R5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from perdure.plan.calls import Call
from perdure.plan.edges.bindings import Binding
from perdure.plan.edges.cycles import Edge
from perdure.plan.edges.order import AFTER_ID, index_of, label, request_of
from perdure.plan.edges.writers import PathIndex, Writers
from perdure.values.jsons import Json
from perdure.values.limits import MAX_EDGES
from perdure.values.paths import overlaps
from perdure.values.references import MISSING, Path, Reference
from perdure.values.state import stands_alone


@dataclass(slots=True, eq=False)
class Node:
    """A call with what it reads and who reads it."""

    call: Call
    bindings: dict[Reference, Binding] = field(default_factory=dict)
    order: dict[Reference, Binding] = field(default_factory=dict)
    """What `_after` names by path (R5.11)."""
    ends: dict[Reference, Binding] = field(default_factory=dict)
    """What of it only has to have ended, however."""
    after: list[int] = field(default_factory=list)
    """What it names by id, by index."""
    any_end: set[int] = field(default_factory=set)
    """What of `after` only has to have ended, however."""
    absent: set[int] = field(default_factory=set)
    """What of it has not arrived."""
    closed: bool = False
    """Whether no call can arrive any more."""
    waiting: set[int] = field(default_factory=set)
    """Indexes of the bound writers that have not ended. Only asked for members and emptiness, never for its order."""
    readers: list[int] = field(default_factory=list)
    edges: int = 0
    """How many edges lead to it."""
    refused: bool = False
    """Whether the call was invalid before anything of it ran, so that it never writes."""
    crowded: bool = False
    """Whether there were more than the plan has room for: then it is left without any."""
    filed: list[tuple[Path, bool]] = field(default_factory=list)
    """Where it is known to write, and whether it sets the path."""
    indexes: list[Writers] = field(default_factory=list)
    """In which indexes it is filed: first that of its own Request, which it looks back in."""

    @property
    def open(self) -> bool:
        """Whether something that it reads or waits for may yet be written by a call that has not arrived."""
        if self.absent and not self.closed:
            return True
        for binding in self.bindings.values():  # a loop: this is asked each time that something ends
            if binding.open:
                return True
        return any(binding.open for binding in (*self.order.values(), *self.ends.values()))

    @property
    def blocked(self) -> bool:
        return bool(self.waiting) or self.open

    @property
    def wired(self) -> bool:
        """Whether it reads, or waits for, anything that a call of the same plan writes, or may write."""
        return bool(self.after) or any(binding.writers or binding.open for binding in self.all_bindings())

    def all_bindings(self) -> Iterator[Binding]:
        """Those of data and those of order."""
        yield from self.bindings.values()
        yield from self.order.values()
        yield from self.ends.values()


class Wiring:
    """The nodes and edges of one plan; `base` is the value of each kind when the plan was made, or its last Request began."""

    def __init__(self, base: Mapping[str, Json], request: int) -> None:
        self.nodes: list[Node] = []
        self.base = base
        self._writers = Writers()
        self._open: PathIndex[tuple[Node, Binding]] = PathIndex()
        self._awaited: dict[int, list[Node]] = {}
        """Who waits, by `_after`, for the call of an index that has not arrived."""
        self._final = False
        self._edges = 0
        self._begins = {request: 0}
        """Request → the index of its first call."""

    def begin(self, request: int, base: Mapping[str, Json]) -> None:
        """The calls of the next Request follow: they see `base`, and of the calls before them what runs or was kept (R10.5)."""
        self._begins[request] = len(self.nodes)
        self.base, self._final, self._writers = base, False, Writers()
        self._awaited.clear()  # what the list before never came to is not among these
        live = [node for node in self.nodes if not node.call.ended]
        self._edges = sum(node.edges for node in live)
        for node in live:
            if not node.call.held:
                self._file(node)

    def _file(self, node: Node) -> None:
        """What the call writes can be read by the calls of the running Request."""
        if self._writers not in node.indexes:
            self._writers.move(node.call.index, (), node.filed)
            node.indexes.append(self._writers)

    def keep(self, call: Call) -> list[Node]:
        """A held call goes on under the running Request. Returns the nodes that found nothing so far and are bound to it now."""
        node = self.nodes[call.index]
        self._file(node)
        return self._bind_open(node)

    def forget(self, gone: Set[int]) -> None:
        """These calls are dropped: who reads what one would have written, and is not dropped itself, looks for another writer."""
        for node in self.nodes:
            if node.call.ended or node.call.index in gone:
                continue
            for binding in node.all_bindings():
                if not gone.isdisjoint(binding.writers):
                    binding.lose(gone, self._writers, [each.call for each in self.nodes])
                    self._note_open(node, binding)
                    self._wait_for(node, binding.writers)
            node.waiting -= set(gone).difference(node.after)

    def id_of(self, node: Node, index: int) -> str:
        """What the call of an index is called in the list of the node's own Request, where that never came to it."""
        request = request_of(node.call.id)
        return f"{request}.{index - self._begins[request]}"

    def place_of(self, id: str) -> int:
        """The index of a call, also of one that has not arrived."""
        return self._begins[request_of(id)] + index_of(id)

    def add(self, call: Call) -> Node:
        """The next call of the list, bound to what stands before it."""
        node = Node(call)
        self.nodes.append(node)
        node.filed = _writes(call)
        node.indexes.append(self._writers)
        for path, sets in node.filed:
            self._writers.add(path, call.index, sets=sets)
        read = (
            (node.bindings, call.condition),
            (node.bindings, call.template),
            (node.bindings, call.soft),
            (node.order, call.after.paths),
            (node.ends, call.after_end.paths),
        )
        for bindings, template in read:
            for reference in template.references():
                if reference not in bindings:
                    base = self.base.get(reference.kind, MISSING)
                    ends = bindings is node.ends
                    binding = Binding(reference, call.index, base, order=ends or bindings is node.order, any_end=ends)
                    binding.back = template is call.soft and _writes_at(node, reference)
                    binding.bind(self._writers)
                    bindings[reference] = binding
                    self._note_open(node, binding)
                    if not self._count(node, len(binding.writers)):
                        return node
        ids = [*call.after.ids, *call.after_end.ids]
        if not self._count(node, len(ids)):
            return node
        node.any_end = {*map(self.place_of, call.after_end.ids)}.difference(map(self.place_of, call.after.ids))
        for index in dict.fromkeys(map(self.place_of, ids)):
            node.after.append(index)
            if index >= len(self.nodes):
                node.absent.add(index)
                self._awaited.setdefault(index, []).append(node)
        self._wait_for_all(node)
        return node

    def _count(self, node: Node, more: int) -> bool:
        """Take more edges to a node into the sum, where there is room. Else it loses those that it has (R18.5)."""
        if self._edges + more <= MAX_EDGES:
            self._edges, node.edges = self._edges + more, node.edges + more
            return True
        self._edges -= node.edges
        for binding in node.all_bindings():
            binding.open = False
        for held in (node.bindings, node.order, node.ends, node.after, node.absent, node.waiting):
            held.clear()
        node.edges, node.crowded = 0, True
        return False

    def refile(self, call: Call) -> list[Node]:
        """A person made the call write elsewhere. Returns the nodes that found nothing so far and are bound to it now."""
        node = self.nodes[call.index]
        before, node.filed = node.filed, _writes(call)
        for writers in node.indexes:
            writers.move(call.index, before, node.filed)
        return self._bind_open(node) if self._writers in node.indexes else []

    def _bind_open(self, node: Node) -> list[Node]:
        bound: list[Node] = []
        for path in _written_paths(node.call):
            for reader, binding in [each for at in self._open_near(path) for each in at]:
                if binding.open and not binding.writers and reader is not node:
                    binding.bind_anew(self._writers)
                    if not binding.open:
                        self._wait_for(reader, binding.writers)
                        bound.append(reader)
        return bound

    def _open_near(self, path: Path) -> list[list[tuple[Node, Binding]]]:
        return [*self._open.above(path), *self._open.below(path)]

    def rebind_open(self, writer: Call) -> list[Node]:
        """The new call may be the later writer that earlier readers wait for. Returns those that are bound by it."""
        bound = self._awaited.pop(writer.index, [])
        for node in bound:
            node.absent.discard(writer.index)
            self._wait_for(node, [writer.index])
        if writer.method != "set":
            return bound
        for path in _written_paths(writer):
            for waiting in self._open_near(path):
                for node, binding in waiting:
                    if binding.open and node.call is not writer:
                        before = len(binding.writers)
                        binding.bind_forward(self._writers, final=False)
                        if not binding.open:
                            if self._count(node, len(binding.writers) - before):
                                self._wait_for(node, binding.writers)
                            bound.append(node)
                waiting[:] = [(node, binding) for node, binding in waiting if binding.open]
        return bound

    def close(self) -> list[Node]:
        """No call will arrive any more. Returns the nodes that were still open, now bound to what there is."""
        self._final = True
        still_open = [node for node in self.nodes if node.open]
        for node in still_open:
            node.closed = True
            for binding in [binding for binding in node.all_bindings() if binding.open]:
                before = len(binding.writers)
                binding.bind_forward(self._writers, final=True)
                if not self._count(node, len(binding.writers) - before):
                    break
            self._wait_for_all(node)
        return still_open

    def end(self, call: Call) -> Iterator[Node]:
        """A call ended: the readers that wait for nothing any more."""
        for index in self.nodes[call.index].readers:
            node = self.nodes[index]
            node.waiting.discard(call.index)
            if not node.blocked:
                yield node

    def move_on(self, node: Node, binding: Binding) -> bool:
        """A writer went another branch: bind to the next ones. Whether there are, or may be, any."""
        # What is behind it was planned with it; what is still to come is the running Request's.
        writers = self._writers if binding.forward else node.indexes[0]
        moved = binding.move_on(writers, [node.call for node in self.nodes], final=self._final)
        self._note_open(node, binding)
        self._wait_for(node, binding.writers)
        return moved

    def binding_at_end(self, reference: Reference, calls: Sequence[Call]) -> Binding:
        """Return how a call at the end of the list would be bound, once all calls have ended (R6.4)."""
        binding = Binding(reference, len(self.nodes), self.base.get(reference.kind, MISSING))
        if reference.kind == "state":
            binding.bind_backward(self._writers)
        while binding.looks_on(calls):
            binding.exhausted = not binding.move_on(self._writers, calls, final=True)
        return binding

    def edges(self, *, first: bool = False) -> Iterator[Edge]:
        """Writer, reader and what the reader reads, or what it waits for, in the order of the readers; with `first` before any
        was passed over."""
        for node in self.nodes:
            for reference, binding in node.bindings.items():
                for writer in binding.first if first else binding.writers:
                    yield writer, node.call.index, reference
            for reference, binding in (*node.order.items(), *node.ends.items()):
                past = first and binding.any_end
                for writer in (
                    self._past_refused(node, binding) if past else binding.first if first else binding.writers
                ):
                    yield writer, node.call.index, label(reference)
            for index in node.after:
                if index not in node.absent:
                    yield index, node.call.index, AFTER_ID

    def _past_refused(self, node: Node, binding: Binding) -> list[int]:
        """The writers of which the list says that they have to end: those that were refused have ended, so those beyond them, too."""
        found, path = list(binding.first), binding.reference.path
        covered = bool(found)
        while covered and all(self.nodes[index].refused for index in found):
            if binding.forward:
                more, covered = self._writers.after(path, max(found))
            else:
                more, covered = node.indexes[0].before(path, min(found))
            found += more
        return found

    def _note_open(self, node: Node, binding: Binding) -> None:
        if binding.open:
            self._open.add(binding.reference.path, (node, binding))

    def _wait_for_all(self, node: Node) -> None:
        for binding in node.all_bindings():
            self._wait_for(node, binding.writers)
        self._wait_for(node, [index for index in node.after if index not in node.absent])

    def _wait_for(self, node: Node, writers: Iterable[int]) -> None:
        for writer in writers:
            if writer not in node.waiting and not self.nodes[writer].call.ended:
                node.waiting.add(writer)
                self.nodes[writer].readers.append(node.call.index)


def _writes_at(node: Node, reference: Reference) -> bool:
    return reference.kind == "state" and any(overlaps(path, reference.path) for path, _ in node.filed)


def _writes(call: Call) -> list[tuple[Path, bool]]:
    return [(path, stands_alone(call.method, path)) for path in _written_paths(call)]


def _written_paths(call: Call) -> list[Path]:
    tallies = () if call.loop is None else call.loop.tallies
    return list(dict.fromkeys([*(path for alternative in call.paths for path in alternative), *tallies]))
