"""Only what differs changes in the browser."""

from dash import dcc, html

from ral_trace.dashboard.changes import changes


def test_nothing_differs() -> None:
    assert changes([html.Div("a", id="x")], [html.Div("a", id="x")]) == []


def test_a_property_changes_alone() -> None:
    old = [html.H1("t"), html.Div([dcc.Graph(id="g", figure={"data": [1]}), html.P("p")])]
    new = [html.H1("t"), html.Div([dcc.Graph(id="g", figure={"data": [2]}), html.P("p")])]
    assert changes(old, new) == [("g", {"figure": {"data": [2]}})]


def test_a_property_that_went_away_is_none() -> None:
    assert changes(html.Div(id="x", title="t"), html.Div(id="x")) == [("x", {"title": None})]


def test_what_has_no_id_changes_with_what_holds_it() -> None:
    inside = [html.P("new"), dcc.Graph(id="g", figure={"data": [2]})]
    old = html.Div([html.P("old"), dcc.Graph(id="g", figure={"data": [1]})], id="x")
    assert changes([old], [html.Div(inside, id="x")]) == [("x", {"children": inside})]


def test_where_nothing_has_an_id_all_is_replaced() -> None:
    assert changes([html.P("a")], [html.P("b")]) is None
    assert changes([html.P("a")], [html.Div("a")]) is None
    assert changes([html.P("a")], [html.P("a"), html.P("b")]) is None
    assert changes([html.P("a", id="x")], [html.P("a", id="y")]) is None


def test_both_a_component_and_what_it_holds() -> None:
    old = html.Div([html.P("a", id="p")], id="x", className="one")
    new = html.Div([html.P("b", id="p")], id="x", className="two")
    assert changes(old, new) == [("x", {"className": "two"}), ("p", {"children": "b"})]
