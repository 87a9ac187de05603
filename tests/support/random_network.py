"""Random networks from a list of small numbers: each number decides one thing, so hypothesis can shrink them."""

import itertools

import jax
import jax.numpy as jnp
from draws import normal, tokens
from jax import lax

VOCABULARY = 5


class Network:
    """Layers on an activation [n t d]; `f(params, x)` runs them.

    Weights are fresh or shared, seen through reshapes, transposes, slices, concatenations, scalar factors.
    """

    def __init__(self, decisions):
        self.decisions = itertools.chain(decisions, itertools.repeat(0))
        self.params, self.layers, self.shapes = {}, [], []
        self.t, self.d = 1 + self.pick(3), 2 + self.pick(3)
        self.x = {
            "h": normal(2, self.t, self.d, seed=1, scale=1.0),
            "token": tokens(2, self.t, VOCABULARY, seed=1),
        }
        for _ in range(1 + self.pick(5)):
            self.shapes.append((self.t, self.d))
            layer = LAYERS[self.pick(len(LAYERS))](self)
            self.layers.append((layer, self.pick(4)))
        n_outputs = 1 + self.pick(4)
        head = self.weight((self.t * self.d, n_outputs)) if self.pick(2) else None
        self.head = head or (
            lambda p: jnp.eye(self.t * self.d, dtype=p["first"].dtype)[:, :n_outputs]
        )
        self.params.setdefault("first", normal(self.x["h"].shape[-1]))

    def pick(self, n):
        return next(self.decisions) % n

    def __call__(self, params, x):
        h = x["h"] * params["first"]
        for layer, finish in self.layers:
            y = layer(params, h, x)
            y = [lambda y: y, jnp.tanh, jnp.sin, jax.nn.gelu][finish](y)
            h = h + y if y.shape == h.shape and finish % 2 else y
        return h.reshape(h.shape[0], -1) @ self.head(params)

    def fresh(self, shape):
        name = f"p{len(self.params)}"
        self.params[name] = normal(*shape, seed=len(self.params))
        return name

    def weight(self, shape):
        """A function params -> array of this shape."""
        size = int(jnp.prod(jnp.array(shape))) if shape else 1
        way = self.pick(10)
        if way == 1:  # shared with an earlier use, in whatever shape that has
            fits = [name for name, value in self.params.items() if value.size == size]
            if fits:
                name = fits[self.pick(len(fits))]
                return lambda p: p[name].reshape(shape)
        if way == 2:
            name = self.fresh(shape[::-1])
            return lambda p: p[name].T
        if way == 3 and shape:  # part of a larger leaf, whose other part is another weight
            name, last = self.fresh((*shape[:-1], 2 * shape[-1])), shape[-1]
            return lambda p: p[name][..., :last] + 0 * p[name][..., last:]
        if way == 4:
            name = self.fresh(shape)
            return lambda p: -0.5 * p[name]
        if way == 5 and shape:
            name, other = self.fresh((*shape[:-1], 1)), self.fresh(shape)
            return lambda p: jnp.concatenate([p[name], p[other][..., 1:]], -1)
        if way == 6:
            name, scale = self.fresh(shape), self.fresh(())
            return lambda p: p[name] * jnp.exp(p[scale])
        if way == 7 and shape:  # every other row of a larger leaf, turned round
            name = self.fresh((2 * shape[0], *shape[1:]))
            return lambda p: p[name][::2][::-1]
        if way == 8:
            name = self.fresh((size,))
            return lambda p: p[name].reshape(shape) + lax.stop_gradient(p[name].reshape(shape))
        name = self.fresh(shape)
        return (lambda p: straight_through(p[name])) if way == 9 else (lambda p: p[name])


@jax.custom_vjp
def straight_through(w):
    """Rounded to eighths, with the derivative of w."""
    return jnp.round(8 * w) / 8


straight_through.defvjp(lambda w: (straight_through(w), None), lambda _, g: (g,))


def dense(net):
    new = 1 + net.pick(4)
    pattern, shape = [
        ("ntd,de->nte", (net.d, new)),
        ("ed,ntd->nte", (new, net.d)),
        ("ntd,tde->nte", (net.t, net.d, new)),
        ("ntd,tdse->nse", (net.t, net.d, net.t, new)),
        ("ntd,etd->net", (new, net.t, net.d)),
    ][net.pick(5)]
    w = net.weight(shape)
    net.t, net.d = (new, net.t) if pattern == "ntd,etd->net" else (net.t, new)
    if "ed," in pattern:
        return lambda p, h, x: jnp.einsum(pattern, w(p), h)
    return lambda p, h, x: jnp.einsum(pattern, h, w(p))


def bias(net):
    b = net.weight([(net.d,), (net.t, net.d), (net.t, 1), ()][net.pick(4)])
    return lambda p, h, x: h + b(p)


def dense_with_bias(net):
    layer, b = dense(net), net.weight((net.d,))
    return lambda p, h, x: layer(p, h, x) + b(p)


def scale(net):
    s = net.weight([(net.d,), (net.t, net.d), ()][net.pick(3)])
    return lambda p, h, x: h * s(p)


def convolution(net):
    width, dilation = 1 + net.pick(3), 1 + net.pick(2)
    groups = net.d if net.pick(2) else 1
    new = net.d if groups > 1 else 1 + net.pick(3)
    w = net.weight((width, net.d // groups, new))
    options = {"rhs_dilation": (dilation,), "feature_group_count": groups}
    numbers = [("NWC", "WIO", "NWC"), ("NWC", "WIO", "NCW")][net.pick(2)]
    net.t, net.d = (net.t, new) if numbers[2] == "NWC" else (new, net.t)
    return lambda p, h, x: lax.conv_general_dilated(
        h, w(p), (1,), "SAME", dimension_numbers=numbers, **options
    )


def norm(net):
    def layer(p, h, x):
        h = h - h.mean(-1, keepdims=True)
        return h * lax.rsqrt((h**2).mean(-1, keepdims=True) + 0.1)

    return layer


def attention(net):
    d, w = net.d, net.weight((net.d, 3 * net.d))

    def layer(p, h, x):
        q, k, v = (
            jnp.split(w(p), 3, axis=1)
            if d % 2
            else (w(p)[:, i * d : (i + 1) * d] for i in range(3))
        )
        return jax.nn.softmax(jnp.einsum("ntd,nsd->nts", h @ q, h @ k)) @ (h @ v)

    return layer


def embedding(net):
    e = net.weight((VOCABULARY, net.d))
    index = net.pick(2)

    def layer(p, h, x):
        rows = e(p)[x["token"]]
        return h + rows.sum(1, keepdims=True) if index else h + rows[:, :1] @ e(p).T @ e(p)

    return layer


def scan(net):
    length, stacked = 2 + net.pick(2), net.pick(3)
    w, b = net.weight((length, net.d, net.d) if stacked else (net.d, net.d)), net.weight((net.d,))
    policy = [
        None,
        jax.checkpoint_policies.dots_saveable,
        jax.checkpoint_policies.nothing_saveable,
    ][net.pick(3)]
    reverse = bool(net.pick(2))

    def layer(p, h, x):
        bias, shared = b(p), w(p)
        step = lambda h, w: (jnp.tanh(h @ (w if stacked else shared) + bias), h.mean((1, 2)))
        step = step if policy is None else jax.checkpoint(step, policy=policy)
        h, means = lax.scan(step, h, shared if stacked else None, length=length, reverse=reverse)
        return h + means.sum(0)[:, None, None] * (stacked > 1)

    return layer


def conditional(net):
    w, v, b = net.weight((net.d, net.d)), net.weight((net.d, net.d)), net.weight((net.d,))
    branches = lambda p: [
        lambda h: h @ w(p) + b(p),
        lambda h: jnp.sin(h @ v(p)),
        lambda h: h * b(p),
    ]
    if net.pick(2):  # by the example
        one = lambda p, h: lax.switch(1 * (h.sum() > 0) + (h[0, 0] > 0), branches(p), h)
        return lambda p, h, x: lax.map(lambda h: one(p, h), h)
    return lambda p, h, x: lax.cond(jnp.asarray(True), *branches(p)[:2], h)


def with_rule(net):
    """A product and a bias with a derivative rule of their own."""
    new, tanh, form = 1 + net.pick(4), net.pick(2), net.pick(3)
    w, b = net.weight((net.d, new) if form else (new, net.d)), net.weight((new,))
    net.d = new
    pattern = "nti,id->ntd" if form else "nti,di->ntd"
    product = lambda h, w, b: jnp.einsum(pattern, h, w) + b

    @jax.custom_vjp
    def f(h, w, b):
        return jnp.tanh(product(h, w, b)) if tanh else product(h, w, b)

    def backward(inputs, g):
        h, w, b = inputs
        g = g * (1 - f(h, w, b) ** 2) if tanh else g
        dw = jnp.einsum("nti,ntd->id", h, g) if form < 2 else (jnp.swapaxes(h, 1, 2) @ g).sum(0)
        return (
            jnp.einsum("ntd,id->nti" if form else "ntd,di->nti", g, w),
            dw if form else dw.T,
            g.sum((0, 1)),
        )

    f.defvjp(lambda *inputs: (f(*inputs), inputs), backward)
    return lambda p, h, x: f(h, w(p), b(p))


LAYERS = [
    dense,
    dense_with_bias,
    bias,
    scale,
    convolution,
    norm,
    attention,
    embedding,
    scan,
    conditional,
    with_rule,
]
