// How numbers are written in the grids; dashboard/units.py writes them the same way. The cells keep the numbers, so that sorting and copying work.
(function () {
    const written = (write) => (value) => (value === null || value === undefined ? "–" : write(value));
    const scaled = (step, units) => (value) => {
        let amount = Math.abs(value), unit = 0;
        while (amount >= step * 0.9995 && unit < units.length - 1) {
            amount /= step;
            unit += 1;
        }
        const digits = unit === 0 || amount >= 100 ? 0 : amount >= 10 ? 1 : 2;
        return (value < 0 ? "-" : "") + amount.toFixed(digits) + " " + units[unit];
    };
    window.dashAgGridFunctions = Object.assign(window.dashAgGridFunctions || {}, {
        duration: written(scaled(1000, ["ns", "us", "ms", "s"])),
        bytes: written(scaled(1024, ["B", "KiB", "MiB", "GiB", "TiB"])),
        percent: written((value) => value.toFixed(1) + " %"),
        count: written((value) => value.toLocaleString("en-US")),
    });
})();
