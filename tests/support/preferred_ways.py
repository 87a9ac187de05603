"""Parts contracted in one kind of way wherever they can be, whatever it costs."""

from internals import Machine, Program, ways_of


def preferred(kind, parts, n, m, k, contraction):
    """The cheapest way of every part among the "dense" or the "structured" ones; None for any."""
    pairs = k * k if contraction == "full" else k
    chosen = []
    for part in parts:
        ways = ways_of(part, k, pairs)
        if kind is not None:
            ways = [way for way in ways if (way.name == "dense") == (kind == "dense")] or ways
        chosen.append(min(ways, key=lambda way: (way.price(n, m), way.size)))
    return tuple(chosen)


def prefer(kind, patch):
    """Let `ntk` contract every part so.

    "streamed": Jacobians formed in the smallest pieces, one example at a time, side by side.
    """
    if kind == "streamed":
        kind = "dense"
        patch.setattr(Machine, "here", staticmethod(lambda: Machine(step=1, chunk=64, workers=3)))

    def ways(program, form, *sizes):
        return preferred(kind, program.parts(form), *sizes)

    patch.setattr(Program, "ways", ways)
