"""What is asked of a cluster's speed, and how a figure is told apart that falls short."""

from everlog.bench.cluster.three_brokers import OTHER, OWNER, demand, verdict


def test_a_figure_says_what_is_asked_for_and_whether_it_holds() -> None:
    assert verdict(1.9, most=2.0) == "1.90 x, asked for at most 2: holds"
    assert verdict(0.62, most=0.3) == "0.62 x, asked for at most 0.3: SHORT"
    assert verdict(1.3, least=1.0) == "1.30 x, asked for at least 1: holds"
    assert verdict(0.5, least=1.0).endswith("SHORT")


def test_demands_are_of_the_owner_its_followers_and_all_together() -> None:
    assert demand(1, OWNER, "owner") == 2.0
    assert demand(1, OWNER, "second follower") == 0.3
    assert demand(1, OWNER, "all three") is None
    assert demand(1, OTHER, "all three") == demand(1000, OWNER, "all three") == 3.0
    assert demand(1000, OWNER, "broker 2") is None
    assert demand(1, "mosquitto", "broker") is None
