// What the theme leaves out for readers without a mouse: code that scrolls can be reached, and each row of buttons has a name.
(() => {
  "use strict";
  const mend = () => {
    for (const code of document.querySelectorAll("pre > code:not([tabindex])")) code.tabIndex = 0;
    document.querySelectorAll("nav.md-code__nav:not([aria-label])").forEach((nav) => {
      const all = [...document.querySelectorAll("nav.md-code__nav")];
      nav.setAttribute("aria-label", `Code block ${all.indexOf(nav) + 1}`);
    });
  };
  document.addEventListener("DOMContentLoaded", () => {
    mend();
    new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
  });
})();
