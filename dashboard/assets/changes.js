// Applies what dashboard/changes.py found to differ. In the browser, because a server's answer that is out of date must change nothing.
window.dash_clientside = Object.assign(window.dash_clientside || {}, {
    ral_trace: {
        apply: function (changes) {
            (changes || []).forEach(([id, properties]) => window.dash_clientside.set_props(id, properties));
            return window.dash_clientside.no_update;
        },
    },
});
