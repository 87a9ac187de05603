"""Names that training scripts give to the parts of what they save."""

# The tree that a model was saved as, best first.
PARAMETERS = ("params", "model")
# The state of an optimizer.
OPTIMIZER_STATES = (
    "opt_state",
    "optimizer",
    "optimizer_state",
    "optim",
    "opt",
    "optim_state",
    "opt_states",
    "optimizer_states",
)
# What train states hold beside the parameters and the collections of a model.
NOT_COLLECTIONS = (
    *OPTIMIZER_STATES,
    "ema",
    "ema_params",
    "avg_params",
    "target_params",
    "grads",
    "metrics",
    "dynamic_scale",
    "loss_scale",
    "rngs",
)
# How far training is: numbers, which stand beside a tree and are no part of it.
PROGRESS = ("step", "epoch", "iteration", "global_step", "rng", "key", "seed")
# Names of what is seldom a collection of the model: it is one where the model has such arrays.
SELDOM_COLLECTIONS = (*NOT_COLLECTIONS, *PROGRESS)
# Fields of the states of Optax that no layer calls a parameter: every state with arrays has one.
FIELDS_OF_OPTAX = ("opt_state", "count", "mu", "nu", "trace", "ema", "hyperparams", "rng_key")
FIELDS_OF_OPTAX += ("inner_state", "inner_states", "mini_step", "fast_state", "steps_since_sync")
FIELDS_OF_OPTAX += ("e_g", "e_x", "sum_of_squares", "step_sizes", "prev_updates", "found_nan")
FIELDS_OF_OPTAX += ("v_row", "v_col", "nu_max", "acc_grads", "grad_acc", "exp_avg", "exp_avg_sq")
FIELDS_OF_OPTAX += ("diff_params_memory", "diff_updates_memory", "weights_memory", "ntk_inner")
