"""One step of training as the instruments of a monitor see it, put together by hand."""

import jax
import jax.numpy as jnp
from internals import StepContext, as_loss
from whole_readings import WholeReading, by_array


def context_of(
    f,
    params,
    x,
    y=None,
    loss=None,
    gradient=None,
    update=None,
    reading=None,
    is_joint=False,
    seed=0,
    measurements=0,
    n_train=None,
):
    """A StepContext at these parameters; `seed` is a whole number, traced or not."""
    if isinstance(reading, WholeReading):
        reading = by_array(reading)
    trained_loss = as_loss(loss)
    if trained_loss is not None:
        y = trained_loss.read(y, jax.eval_shape(f, params, x).shape)
    return StepContext(
        f=f,
        x=jax.tree.map(jnp.asarray, x),
        y=y,
        loss=trained_loss,
        is_joint=is_joint,
        step=measurements,
        params=jax.tree.map(jnp.asarray, params),
        gradient=gradient,
        update=update,
        read=lambda: reading,
        held={},
        measurements=measurements,
        seed=seed,
        n_train=n_train,
    )
