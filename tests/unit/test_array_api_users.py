"""SciPy and scikit-learn take tensors: their functions are written for the array API standard."""

from __future__ import annotations

import os
import subprocess
import sys

# SciPy reads its switch when it is imported. Each result is compared with that for NumPy's arrays.
PROGRAM = """
import numpy as np
from scipy import cluster, fft, integrate, signal, special, stats
from scipy.differentiate import derivative
from sklearn import config_context, metrics
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler

from opdispatch import Tensor, array_api

x = np.random.default_rng(0).normal(size=(6, 3))
v = np.arange(1.0, 7.0)
labels = np.array([0, 1, 0, 1, 0, 1])

CALLS = {
    "softmax": lambda x, v, n, xp: special.softmax(x, axis=1),
    "logsumexp": lambda x, v, n, xp: special.logsumexp(x, axis=0),
    "gammaln": lambda x, v, n, xp: special.gammaln(v),
    "fft": lambda x, v, n, xp: fft.fft(x),
    "zmap": lambda x, v, n, xp: stats.zmap(v, v),
    "skew": lambda x, v, n, xp: stats.skew(x),
    "ttest": lambda x, v, n, xp: stats.ttest_1samp(v, 3.0).pvalue,
    "pearsonr": lambda x, v, n, xp: stats.pearsonr(v, v * v).statistic,
    "trapezoid": lambda x, v, n, xp: integrate.cumulative_trapezoid(v),
    "vq": lambda x, v, n, xp: cluster.vq.vq(x, x[:2])[1],
    "hilbert": lambda x, v, n, xp: signal.hilbert(v),
    "derivative": lambda x, v, n, xp: derivative(xp.exp, v).df,
    "StandardScaler": lambda x, v, n, xp: StandardScaler().fit_transform(x),
    "MinMaxScaler": lambda x, v, n, xp: MinMaxScaler().fit_transform(x),
    "MaxAbsScaler": lambda x, v, n, xp: MaxAbsScaler().fit_transform(x),
    "Normalizer": lambda x, v, n, xp: Normalizer().fit_transform(x),
    "PCA": lambda x, v, n, xp: PCA(n_components=2, svd_solver="full").fit_transform(x),
    "Ridge": lambda x, v, n, xp: Ridge(solver="svd").fit(x, v).predict(x),
    "LDA": lambda x, v, n, xp: LinearDiscriminantAnalysis().fit(x, n).predict(x),
    "distances": lambda x, v, n, xp: metrics.pairwise.euclidean_distances(x, x),
}

with config_context(array_api_dispatch=True):
    for name, call in CALLS.items():
        result = call(Tensor(x), Tensor(v), Tensor(labels), array_api)
        assert type(result) is Tensor, (name, type(result))
        np.testing.assert_allclose(result.array, call(x, v, labels, np), rtol=1e-6, atol=1e-6)
        print(name)
"""


def test_functions_of_scipy_and_scikit_learn_take_tensors():
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert len(completed.stdout.split()) == 20
