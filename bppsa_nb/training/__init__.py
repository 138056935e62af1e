"""Training without a framework: loss, optimizers, data sets, a trainer that can be stopped and resumed anywhere."""
