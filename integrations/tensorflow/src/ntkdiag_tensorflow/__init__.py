"""TensorFlow models in ntkdiag: tf.Module, tf.keras.Model, tf.function, SavedModel."""

from ntkdiag_tensorflow.empirical import empirical_ntk_fn_tf as empirical_ntk_fn_tf
from ntkdiag_tensorflow.empirical import get_apply_fn_and_params as get_apply_fn_and_params
from ntkdiag_tensorflow.functional import functionalize as functionalize
