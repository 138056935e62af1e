r"""What can be scanned: operands that know :math:`A \diamond B = B A`.

An operand kind is a class whose ``__matmul__`` multiplies two of its kind (matrix times matrix) or one of its kind and
a gradient (matrix times vector); everything else is left to :mod:`bppsa_nb.scan`.

==========  ==========  ====================================================================
kind        module      an operand is
==========  ==========  ====================================================================
`Dense`     `dense`     a matrix, or one matrix per sample
`CSR`       `dense`     a sparse matrix
`Planned`   `batched`   sparse matrices of several samples, one pattern; products by plan
`Scaled`    `scaled`    one of these times an exact power of two, so that products stay in range
`Affine`    `dense`     ``x -> M x + c``: a matrix and the loss term that enters at that step
`Pattern`   `pattern`   where a matrix may be non-zero: counts multiply-adds
==========  ==========  ====================================================================

Gradients are plain arrays for the first five kinds. One more kind, `bppsa_nb.scan.trace.Traced`, is nothing but its
name, and records who was combined with whom.
"""
