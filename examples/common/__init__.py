"""What recipes share: settings and their flags, the strategy, precision, rates, saving, the report.

Written for `tf.keras`: Keras 3, or tf_keras where TF_USE_LEGACY_KERAS=1.
"""
