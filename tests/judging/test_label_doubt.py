"""Labels that all other examples contradict: by hand."""

import numpy as np
from internals import label_doubts, suspicious

CLASSES = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


def predictions(wrong, ahead):
    """Others say the label, but of some examples another class, by so much."""
    values = np.eye(3)[CLASSES]
    for place in wrong:
        values[place] = 0.1
        values[place, (CLASSES[place] + 1) % 3] = 0.1 + ahead
    return values


def test_doubts_are_by_how_much_another_class_is_ahead():
    doubts = label_doubts(predictions([4], 0.7), CLASSES)
    np.testing.assert_allclose(doubts[4], 0.7)
    np.testing.assert_allclose(np.delete(doubts, 4), -1.0)


def test_the_most_doubted_first_above_the_threshold():
    values = predictions([4], 0.6) + predictions([7], 0.9) - np.eye(3)[CLASSES]
    np.testing.assert_array_equal(suspicious(label_doubts(values, CLASSES)), [7, 4])
    assert not len(suspicious(label_doubts(predictions([4], 0.4), CLASSES)))


def test_others_that_are_wrong_about_many_cast_no_doubt():
    assert not len(suspicious(label_doubts(predictions([0, 1, 4], 0.9), CLASSES)))
