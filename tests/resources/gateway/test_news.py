"""Trouble of store and journal is said once when it begins, and once when it is over."""

from resources.gateway.capture import Capture, CaptureSettings, News


def test_trouble_is_said_when_it_begins_and_when_it_is_over():
    news = News("s3://logs")
    assert news.of("", 0) == []
    assert news.of("access denied", 0) == ["s3://logs takes no objects (access denied): they wait in the journal"]
    assert news.of("no route", 4) == ["exchanges are not kept now: /capture/status says how many and why"]
    assert news.of("no route", 9) == []
    assert news.of("", 9) == ["s3://logs takes objects again", "exchanges are kept again; 9 were not since the start"]
    assert news.of("", 9) == []


def test_the_capture_layer_says_it(tmp_path, monkeypatch):
    monkeypatch.setattr("resources.gateway.capture.NEWS_EVERY_S", 0.0)
    monkeypatch.setattr("resources.gateway.capture.TICKS_EVERY_S", 0.05)
    monkeypatch.setattr("resources.gateway.capture.Capture._shipped", lambda self: {"problem": "the disk is full"})
    said = []
    with Capture(CaptureSettings(str(tmp_path / "logs")), said.append) as capture:
        while not said:
            capture._ended.wait(0.05)
    assert said == [f"{tmp_path / 'logs'} takes no objects (the disk is full): they wait in the journal"]
