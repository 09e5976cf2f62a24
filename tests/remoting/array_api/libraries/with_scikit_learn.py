"""scikit-learn with array API dispatch: estimators that compute where the arrays are."""

import os

os.environ["SCIPY_ARRAY_API"] = "1"

import cupy as cp
import numpy as np
import sklearn
from sklearn import metrics
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, MaxAbsScaler, MinMaxScaler, Normalizer
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

RANDOM = np.random.RandomState(0)
X = RANDOM.rand(60, 5)
CLASSES = (X[:, 0] + 0.3 * X[:, 1] > 0.6).astype(int)
VALUES = X @ np.arange(5.0) + 0.1
GUESSES = CLASSES ^ (RANDOM.rand(60) > 0.8)
NEAR = VALUES + RANDOM.rand(60)

CALLS = {
    "standard": lambda of: StandardScaler().fit_transform(of(X)),
    "range": lambda of: MinMaxScaler().fit_transform(of(X)),
    "largest": lambda of: MaxAbsScaler().fit_transform(of(X)),
    "norm": lambda of: Normalizer().fit_transform(of(X)),
    "polynomials": lambda of: PolynomialFeatures().fit_transform(of(X)),
    "labels": lambda of: LabelEncoder().fit_transform(of(CLASSES + 3)),
    "components": lambda of: abs(PCA(2, svd_solver="full").fit_transform(of(X))),
    "discriminants": lambda of: LinearDiscriminantAnalysis().fit(of(X), of(CLASSES)).predict(of(X)),
    "ridge": lambda of: Ridge(solver="svd").fit(of(X), of(VALUES)).predict(of(X)),
    "pipeline": lambda of: (
        make_pipeline(StandardScaler(), PCA(3, svd_solver="full"), Ridge(solver="svd"))
        .fit(of(X), of(VALUES))
        .predict(of(X))
    ),
    "split": lambda of: train_test_split(of(X), of(CLASSES), random_state=0)[1],
    "folds": lambda of: cross_val_predict(Ridge(solver="svd"), of(X), of(VALUES)),
    "kernel": lambda of: metrics.pairwise.rbf_kernel(of(X), of(X + 1)),
    "similarity": lambda of: metrics.pairwise.cosine_similarity(of(X)),
    "distances": lambda of: metrics.pairwise.euclidean_distances(of(X), of(X + 1)),
}
SCORES = {
    "accuracy": lambda of: metrics.accuracy_score(of(CLASSES), of(GUESSES)),
    "f1": lambda of: metrics.f1_score(of(CLASSES), of(GUESSES)),
    "squared error": lambda of: metrics.mean_squared_error(of(VALUES), of(NEAR)),
    "determination": lambda of: metrics.r2_score(of(VALUES), of(NEAR)),
}


def main() -> None:
    """Compare each result with that of NumPy's arrays."""
    sklearn.set_config(array_api_dispatch=True)
    for name, call in CALLS.items():
        made = call(cp.asarray)
        assert isinstance(made, cp.ndarray), (name, type(made))
        np.testing.assert_allclose(made.get(), call(np.asarray), rtol=1e-6, atol=1e-6)
    for call in SCORES.values():
        np.testing.assert_allclose(float(call(cp.asarray)), call(np.asarray))
    print("as NumPy:", len(CALLS) + len(SCORES))


main()
