import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Logs each line of standard input, and ends with it. */
class LogLines {
    public static void main(String[] arguments) throws Exception {
        Logger logger = LoggerFactory.getLogger("shop");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            logger.info(line);
        }
        ((ch.qos.logback.classic.LoggerContext) LoggerFactory.getILoggerFactory()).stop();
    }
}
