import { render } from "preact";
import { App } from "./app";
import "uplot/dist/uPlot.min.css";
import "./styles/page.css";

const root = document.getElementById("page");
if (root) render(<App />, root);
