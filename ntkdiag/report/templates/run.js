"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const numbers = JSON.parse(document.getElementById("numbers").textContent);

  // Tabs: one page at a time. Without this script they are links to places of one long page.
  const tabs = [...document.querySelectorAll(".tabs a")];
  const pageOf = (tab) => document.querySelector(tab.getAttribute("href"));
  const choose = (tab) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      pageOf(other).classList.toggle("chosen", chosen);
    }
  };
  document.querySelector(".tabs").setAttribute("role", "tablist");
  tabs.forEach((tab, place) => {
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", pageOf(tab).id);
    pageOf(tab).setAttribute("role", "tabpanel");
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      choose(tab);
      history.replaceState(null, "", tab.getAttribute("href"));
    });
    tab.addEventListener("keydown", (event) => {
      const ends = { Home: 0, End: tabs.length - 1 };
      const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, ...ends };
      if (event.key === " ") {
        event.preventDefault();
        tab.click();
      } else if (event.key in moves) {
        event.preventDefault();
        const next = tabs[(moves[event.key] + tabs.length) % tabs.length];
        next.focus();
        next.click();
      }
    });
  });
  choose(tabs.find((tab) => tab.getAttribute("href") === location.hash) || tabs[0]);

  for (const figure of document.querySelectorAll(".drawing")) prepare(figure);

  function prepare(figure) {
    const name = figure.dataset.name;
    const { columns, points } = numbers[name];
    const series = columns.series ? [...new Set(columns.series)] : [];
    const hidden = new Set();
    const parts = (curve) =>
      ["curve", "band"]
        .map((part) => figure.querySelector(`[id="run-${name}-${part}-${curve}"]`))
        .filter(Boolean);
    const show = (curve, visible) => {
      for (const part of parts(curve)) part.style.display = visible ? "" : "none";
      if (visible) hidden.delete(series[curve]);
      else hidden.add(series[curve]);
    };

    for (const button of figure.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const visible = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(visible));
        show(Number(button.dataset.curve), visible);
      });
    }

    // One state at a time; the first and the last one stay as faint lines to compare with.
    const slider = figure.querySelector(".states input");
    if (slider) {
      const labels = slider.dataset.labels.split("|");
      const output = figure.querySelector(".states output");
      const move = () => {
        const chosen = Number(slider.value);
        labels.forEach((label, curve) => {
          const isEnd = curve === 0 || curve === labels.length - 1;
          show(curve, curve === chosen || isEnd);
          for (const part of parts(curve)) part.style.opacity = curve === chosen ? "" : ".3";
          if (curve !== chosen) hidden.add(series[curve]);
        });
        output.textContent = labels[chosen];
        slider.setAttribute("aria-valuetext", labels[chosen]);
      };
      slider.closest(".states").hidden = false;
      slider.addEventListener("input", move);
      move();
    }

    // The number that is nearest to the pointer.
    const canvas = figure.querySelector(".canvas");
    const tip = figure.querySelector(".tip");
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const x = event.clientX - box.left;
      const y = event.clientY - box.top;
      let nearest = -1;
      let least = 40 * 40; // pixels, squared
      points.forEach(([left, top], place) => {
        if (left === null || hidden.has(columns.series?.[place])) return;
        const across = (left / 100) * box.width - x;
        const down = (top / 100) * box.height - y;
        const distance = across * across + down * down;
        if (distance < least) [nearest, least] = [place, distance];
      });
      tip.hidden = nearest < 0;
      if (nearest < 0) return;
      tip.textContent = inWords(columns, nearest);
      const [left, top] = points[nearest];
      const half = tip.offsetWidth / 2;
      const middle = (left / 100) * box.width;
      tip.style.left = `${Math.max(half, Math.min(box.width - half, middle))}px`;
      tip.style.top = `${Math.max(28, (top / 100) * box.height)}px`;
    });
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));

    for (const button of figure.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => {
        if (button.dataset.save === "csv") save(`${name}.csv`, "text/csv", asCsv(columns));
        else save(`${name}.svg`, "image/svg+xml", asSvg(figure.querySelector("svg")));
      });
    }
  }

  function inWords(columns, place) {
    const parts = [];
    for (const [name, values] of Object.entries(columns)) {
      const value = values[place];
      if (value === null || name === "lower" || name === "upper") continue;
      if (name === "series") parts.push(`${value}:`);
      else if (name === "value") parts.push(String(Number(value.toPrecision(4))));
      else parts.push(`${name.replace("_", " ")} ${value},`);
    }
    return parts.join(" ");
  }

  function asCsv(columns) {
    const names = Object.keys(columns);
    const quoted = (value) => {
      let text = value === null ? "" : String(value);
      // What a spreadsheet would compute is text.
      if (/^[=+\-@＝＋－＠\t\r\n]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const lines = [names.map(quoted).join(",")];
    columns[names[0]].forEach((_, place) => {
      lines.push(names.map((name) => quoted(columns[name][place])).join(","));
    });
    return lines.join("\r\n") + "\r\n";
  }

  // A drawing by itself has no page to take colours from: it gets those of the light one.
  function asSvg(drawing) {
    const copy = drawing.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("color", "#1c2330");
    copy.setAttribute("font-family", "sans-serif");
    const light = { "--a": "#3b7dd8", "--b": "#e07b1f", "--line": "#c9d0da" };
    const text = new XMLSerializer().serializeToString(copy);
    return text.replace(/var\((--\w+)\)/g, (whole, name) => light[name] || whole);
  }

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
})();
