// The shell of every page.
import "bootstrap/dist/css/bootstrap.min.css";
import "bootstrap-icons/font/bootstrap-icons.min.css";
import "./styles/tokens.css";
import "./styles/bootstrap.css";
import "./styles/shell.css";
import "bootstrap/js/dist/alert.js";
import "bootstrap/js/dist/collapse.js";
import "bootstrap/js/dist/dropdown.js";
import "bootstrap/js/dist/modal.js";
import "bootstrap/js/dist/offcanvas.js";
import "bootstrap/js/dist/tab.js";
import { startChanges } from "./changes.js";
import { startKeys } from "./keys.js";
import { startLiveDot } from "./live.js";
import { startMenus } from "./menus.js";
import { startPages } from "./pages.js";
import { startTimes } from "./times.js";

startTimes();
startMenus();
startKeys();
startLiveDot();
startChanges();
startPages();
