"""Keras's LSTM with the second bias that cuDNN's and PyTorch's have."""

import keras


@keras.saving.register_keras_serializable(package="examples")
class _TwoBiasCell(keras.layers.LSTMCell):
    """`bias` is the sum of two variables."""

    def build(self, input_shape):
        super().build(input_shape)
        self.recurrent_bias = self.add_weight(
            shape=[4 * self.units], initializer="zeros", name="recurrent_bias"
        )

    @property
    def bias(self):
        return self._input_bias + self.recurrent_bias

    @bias.setter
    def bias(self, variable):
        self._input_bias = variable


class _TwoBiasRNN(keras.layers.RNN):
    """Between LSTM and RNN, to exchange the cell on its way from one to the other."""

    def __init__(self, cell, **kwargs):
        super().__init__(_TwoBiasCell.from_config(cell.get_config()), **kwargs)


@keras.saving.register_keras_serializable(package="examples")
class TwoBiasLSTM(keras.layers.LSTM, _TwoBiasRNN):
    """An LSTM whose gates add a bias to the product with the input and one to that with the state.

    Published sizes count both, 4 `units` more than Keras's LSTM has. It computes nothing that one could not.

    Args: those of `keras.layers.LSTM`.

    Example:
      >>> layer = TwoBiasLSTM(3)
      >>> layer.build([None, None, 2])
      >>> layer.count_params() - 4 * (2 * 3 + 3 * 3)
      24
    """
