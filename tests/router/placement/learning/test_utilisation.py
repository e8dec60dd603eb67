import pytest

from policies.records import UTILISATION_CAP
from router.placement.learning.speed import Speed
from router.placement.learning.utilisation import Utilisation


def test_utilisation_follows_dispatched_work():
    speed = Speed(1e-4, 0.0, 0.0, 0.0, 0.0)
    utilisation = Utilisation()
    assert utilisation.share(speed, 5.0) == 0.0
    for tick in range(600):
        utilisation.dispatched(1_000, 0.0, tick * 0.2)  # 0.1 s of work each 0.2 s
    assert utilisation.share(speed, 120.0) == pytest.approx(0.5, rel=0.1)
    assert utilisation.share(speed, 180.0) == pytest.approx(0.5 / 2.718, rel=0.15)
    utilisation.dispatched(10_000_000, 0.0, 180.0)
    assert utilisation.share(speed, 180.0) == UTILISATION_CAP


def test_utilisation_is_modest_at_the_first_request():
    utilisation = Utilisation()
    utilisation.dispatched(1_000, 0.0, 50.0)
    assert utilisation.share(Speed(1e-4, 0.0, 0.0, 0.0, 0.0), 50.0) == pytest.approx(0.01, rel=0.1)
