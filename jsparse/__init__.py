# SPDX-License-Identifier: Apache-2.0
"""jsparse: a sparse tensor compiler inside JAX.

    import jax, jsparse as js
    A = js.fromdense(x, format="csr")
    y = jax.jit(lambda A, B: js.einsum("ij,jk->ik", A, B))(A, B)

Reading order of the source, which is the data flow: `parse`, `schedule/` (infer, split, auto,
directives), `lower/` (walk, loops, assemble), `codegen/`, `pipeline`, `ffi`, `primitive`,
`array`, `convert`, `api`.
"""

from jsparse import config as config
from jsparse import pipeline as _pipeline
from jsparse import rules as _rules  # noqa: F401  (registers derivatives and batching)
from jsparse import trees as _trees
from jsparse.api import einsum as einsum
from jsparse.array import SparseArray as SparseArray
from jsparse.construct import asarray as asarray
from jsparse.construct import bcsr as bcsr
from jsparse.construct import coo as coo
from jsparse.construct import csc as csc
from jsparse.construct import csf as csf
from jsparse.construct import csr as csr
from jsparse.construct import dia as dia
from jsparse.construct import fromdense as fromdense
from jsparse.convert import todense as todense
from jsparse.derivative import grad as grad
from jsparse.derivative import jacfwd as jacfwd
from jsparse.derivative import jacrev as jacrev
from jsparse.derivative import value_and_grad as value_and_grad
from jsparse.explain import Explanation as Explanation
from jsparse.explain import explain as explain
from jsparse.ffi import export_checks as export_checks
from jsparse.ffi import register as _register
from jsparse.files import load as load
from jsparse.files import save as save
from jsparse.format import Format as Format
from jsparse.functions import add as add
from jsparse.functions import conj as conj
from jsparse.functions import divide as divide
from jsparse.functions import dot as dot
from jsparse.functions import matmul as matmul
from jsparse.functions import mean as mean
from jsparse.functions import multiply as multiply
from jsparse.functions import negative as negative
from jsparse.functions import outer as outer
from jsparse.functions import subtract as subtract
from jsparse.functions import sum as sum
from jsparse.functions import tensordot as tensordot
from jsparse.functions import vdot as vdot
from jsparse.generate import diags as diags
from jsparse.generate import eye as eye
from jsparse.generate import random as random
from jsparse.sharding import RowBlocks as RowBlocks
from jsparse.sharding import shard_rows as shard_rows
from jsparse.structure import concatenate as concatenate
from jsparse.structure import expand_dims as expand_dims
from jsparse.structure import reshape as reshape
from jsparse.structure import stack as stack
from jsparse.structure import transpose as transpose

__version__ = "0.1.0"

_register(_pipeline.resolve)
_trees.register()
