"""Workloads of PyTorch that are calls rather than models, for ``workloads.py``.

Copies, waits, graphs, streams, linear algebra, and results whose sizes the host needs.
"""

from typing import Any

from workloads_kit import Made, torch_made


def timed() -> Made:
    """Ten times: two events around a product, a wait, and the time between them."""
    import torch

    data = torch.randn(1024, 1024).cuda()

    def step() -> float:
        total = 0.0
        for _ in range(10):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            torch.mm(data, data)
            last.record()
            last.synchronize()
            total += first.elapsed_time(last)
        assert total > 0
        return 1.0

    return torch_made(step)


def masks() -> Made:
    """Five times a mask, nonzero and unique; the host needs their sizes."""
    import torch

    data = torch.randn(100000).cuda()

    def step() -> int:
        count = 0
        for at in range(5):
            chosen = data[data > 0.1 * at]
            count += len(torch.nonzero(chosen > 0.5)) + len(torch.unique((chosen * 100).int()))
        return count

    return torch_made(step)


def unique() -> Made:
    """Find the distinct values of a million, with their counts."""
    import torch

    data = torch.randint(0, 5000, (1 << 20,)).cuda()

    def step() -> int:
        values, counts = torch.unique(data, return_counts=True)
        return len(values) + len(counts)

    return torch_made(step)


SIZES = [768 * 50257, 768 * 1024, *([768 * 768 * 4] * 36), *([768] * 110)]
"""Numbers in each of the 148 pieces of GPT-2's state, 497 MB together."""


def state_dict() -> Made:
    """Load a state_dict of 497 MB in 148 pieces."""
    import torch

    model = torch.nn.ParameterList(torch.nn.Parameter(torch.empty(size)) for size in SIZES).cuda()
    state = {str(at): torch.full((size,), float(at)) for at, size in enumerate(SIZES)}

    def step() -> float:
        model.load_state_dict(state)
        return float(model[-1][5].item())

    return torch_made(step)


def state_save() -> Made:
    """Bring the same state_dict to the host."""
    import torch

    pieces = [torch.full((size,), float(at), device="cuda") for at, size in enumerate(SIZES)]

    def step() -> float:
        state = [piece.cpu() for piece in pieces]
        return float(state[-1][5])

    return torch_made(step)


def pinned_copies() -> Made:
    """Four batches of 38.5 MB from pinned memory, without a wait."""
    import torch

    batches = [torch.full((64, 3, 224, 224), float(at)).pin_memory() for at in range(4)]

    def step() -> Any:
        return sum(batch.to("cuda", non_blocking=True)[5, 2, 7, 9] for batch in batches)

    return torch_made(step)


def churn() -> Made:
    """Empty PyTorch's cache at each step, so that it calls cudaMalloc and cudaFree."""
    import torch

    def step() -> float:
        pieces = [torch.full((4 << 20,), float(at), device="cuda") for at in range(6)]
        found = pieces[3]
        result = found[:1] + 0
        del pieces, found
        torch.cuda.empty_cache()
        return result

    return torch_made(step)


def captured(work: Any) -> tuple[Any, Any]:
    """Return a graph of some work, and the work's result; it runs before as CUDA wants it."""
    import torch

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def graph_served() -> Made:
    """Replay a network: its input from pinned memory, its output on the host."""
    import torch

    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda().eval()
    given = torch.randn(32, 512).pin_memory()
    place = given.cuda()
    with torch.no_grad():
        graph, output = captured(lambda: model(place))

    def step() -> float:
        place.copy_(given, non_blocking=True)
        graph.replay()
        return float(output.cpu().square().sum())

    return torch_made(step)


def graph_replay() -> Made:
    """Replay a graph of 72 kernels twenty times."""
    import torch

    weight = torch.randn(512, 512).cuda() / 32
    start = torch.randn(512, 512).cuda()

    def work() -> Any:
        x = start
        for _ in range(24):
            x = torch.relu(torch.mm(x, weight) + 0.01)
        return x

    graph, output = captured(work)

    def step() -> Any:
        for _ in range(20):
            graph.replay()
        return output.sum()

    return torch_made(step)


def streams() -> Made:
    """Make four streams wait for each other's events, five times around."""
    import torch

    lanes = [torch.cuda.Stream() for _ in range(4)]
    weight = torch.randn(512, 512).cuda() / 32
    places = [torch.ones(512, 512).cuda() for _ in lanes]
    torch.cuda.synchronize()

    def step() -> float:
        for _ in range(5):
            events: list[Any] = []
            for lane, place in zip(lanes, places, strict=True):
                with torch.cuda.stream(lane):
                    torch.mm(weight, weight, out=place)
                    place.add_(1.0)
                    events.append(lane.record_event())
            for at, lane in enumerate(lanes):
                lane.wait_event(events[at - 1])
        torch.cuda.current_stream().wait_stream(lanes[0])
        return places[0][3, 4] + 0.0

    return torch_made(step)


def solve() -> Made:
    """Solve a system of 1,024 equations; one number of the solution comes to the host."""
    import torch

    matrix = torch.randn(1024, 1024).cuda() + 64 * torch.eye(1024).cuda()
    right = torch.randn(1024, 8).cuda()
    return torch_made(lambda: float(torch.linalg.solve(matrix, right)[3, 4].item()))


def eigh() -> Made:
    """Find a symmetric matrix's eigenvalues and vectors, and the largest value on the host."""
    import torch

    matrix = torch.randn(256, 256).cuda()
    matrix = matrix + matrix.T
    return torch_made(lambda: float(torch.linalg.eigh(matrix)[0][-1].item()))


def svd() -> Made:
    """Find a matrix's singular values, and the largest on the host."""
    import torch

    matrix = torch.randn(128, 128).cuda()
    return torch_made(lambda: float(torch.linalg.svd(matrix)[1][0].item()))


def waits() -> Made:
    """Launch a small kernel and wait for the device, a hundred times."""
    import torch

    data = torch.zeros(16).cuda()

    def step() -> float:
        for _ in range(100):
            data.add_(1)
            torch.cuda.synchronize()
        return 1.0

    return torch_made(step)


def launches() -> Made:
    """Three hundred tiny kernels."""
    import torch

    data = torch.zeros(16).cuda()

    def step() -> float:
        for _ in range(300):
            data.add_(1)
        return 1.0

    return torch_made(step)


CALLS = {
    one.__name__: one
    for one in (
        *(timed, masks, unique, state_dict, state_save, pinned_copies, churn, graph_served),
        *(graph_replay, streams, solve, eigh, svd, waits, launches),
    )
}
